"""Sampling is exactly what its cost says."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidArgumentError
from tacit.privacy.cost import ConditionedPoissonDpEvent
from tacit.privacy.drawing import first_occurrences, shuffled, size_table, uniform_indices
from tacit.privacy.sampling import (
    FixedBatch,
    FullBatch,
    PoissonBatch,
    StatedBatch,
    UnstatedBatch,
)
from tacit.rng import seeded_key


def many(function, num_draws, seed=0):
    return jax.jit(jax.vmap(function))(jax.random.split(seeded_key(seed), num_draws))


def test_a_full_batch_is_every_record_once():
    batch = FullBatch(num_records=7).draw(seeded_key(0))
    assert batch.indices.tolist() == list(range(7))
    assert batch.mask.all()


@pytest.mark.parametrize(("num_records", "batch_size"), [(1000, 30), (40, 13), (12, 3)])
def test_every_record_is_drawn_at_the_public_inclusion_rate(num_records, batch_size):
    sampling = PoissonBatch(num_records=num_records, batch_size=batch_size)
    num_draws = 4000
    batch = many(sampling.draw, num_draws)
    counts = np.bincount(np.asarray(batch.indices)[np.asarray(batch.mask)], minlength=num_records)
    rate = sampling.inclusion_rate
    z = (counts - num_draws * rate) / math.sqrt(num_draws * rate * (1 - rate))
    # Five sigma over at most a thousand records: one false alarm in two thousand runs.
    assert np.abs(z).max() < 5
    # And the rates vary no more or less than independent coins would.
    assert stats.chi2.cdf(np.sum(z**2), num_records) == pytest.approx(0.5, abs=0.4999)


def test_poisson_batch_sizes_are_binomial():
    sampling = PoissonBatch(num_records=500, batch_size=20, max_batch_size=500)
    sizes = np.asarray(many(sampling.draw, 20_000).mask.sum(1))
    expected = stats.binom(500, 20 / 500)
    edges = np.arange(8, 34)
    observed = np.array([np.mean(sizes <= edge) for edge in edges])
    assert np.abs(observed - expected.cdf(edges)).max() < 5 * 0.5 / math.sqrt(20_000)


def test_two_records_are_drawn_independently_of_each_other():
    sampling = PoissonBatch(num_records=8, batch_size=4, max_batch_size=8)
    batch = many(sampling.draw, 40_000)
    drawn = np.zeros((40_000, 8))
    rows = np.broadcast_to(np.arange(40_000)[:, None], batch.indices.shape)
    drawn[rows, np.asarray(batch.indices)] = np.asarray(batch.mask)
    covariance = np.cov(drawn.T) - 0.25 * np.eye(8)
    assert np.abs(covariance).max() < 5 * 0.25 / math.sqrt(40_000) * math.sqrt(2)


def test_every_subset_of_a_small_population_has_its_poisson_probability():
    sampling = PoissonBatch(num_records=4, batch_size=1.2, max_batch_size=4)
    batch = many(sampling.draw, 60_000)
    members = np.zeros(60_000, int)
    for slot in range(4):
        bits = 1 << np.asarray(batch.indices[:, slot])
        members += np.where(np.asarray(batch.mask[:, slot]), bits, 0)
    q = sampling.rate
    for subset in range(16):
        size = subset.bit_count()
        p = q**size * (1 - q) ** (4 - size)
        observed = np.mean(members == subset)
        assert abs(observed - p) < 5 * math.sqrt(p * (1 - p) / 60_000)


@pytest.mark.parametrize(
    "draw",
    [
        lambda k, n: shuffled(jax.random.bits(k, (2, n), jnp.uint32)),
        lambda k, n: first_occurrences(k, 3, n),
    ],
)
def test_ordered_draws_are_uniform_over_arrangements(draw):
    num_records = 5
    ordered = np.asarray(many(lambda key: draw(key, num_records)[:3], 60_000))
    codes = ordered @ np.array([25, 5, 1])
    arrangements = list(itertools.permutations(range(num_records), 3))
    observed = np.array([np.sum(codes == np.dot(a, [25, 5, 1])) for a in arrangements])
    assert observed.sum() == 60_000  # nothing but distinct, in-range arrangements
    assert stats.chisquare(observed).pvalue > 1e-5


@pytest.mark.parametrize("num_records", [100_000, 2_000_000_000])
def test_drawing_costs_the_same_however_many_records_there_are(num_records):
    sampling = FixedBatch(num_records=num_records, batch_size=64)
    program = jax.make_jaxpr(sampling.draw)(seeded_key(0))
    largest = max(
        math.prod(variable.aval.shape)
        for equation in program.jaxpr.eqns
        for variable in equation.outvars
        if hasattr(variable.aval, "shape")
    )
    assert largest < 100 * 64
    indices = np.asarray(sampling.draw(seeded_key(1)).indices)
    assert len(set(indices.tolist())) == 64
    assert indices.min() >= 0
    assert indices.max() < num_records
    assert indices.max() > num_records // 2


# --- the size of a batch -------------------------------------------------------------------------

SIZES = [
    (60_000, 256 / 60_000, 272),
    (60_000, 256 / 60_000, 60_000),
    (32_561, 2048 / 32_561, 2092),
    (1000, 0.1, 110),
    (1000, 0.1, 60),  # far below the mean
    (1000, 0.999, 500),
    (2**31 - 1, 2000 / (2**31 - 1), 2045),
    (10_000, 1e-10, 1),
    (7, 0.3, 0),
    (7, 0.3, 2),
    (7, 0.3, 7),
]


@pytest.mark.parametrize(("num_records", "rate", "capacity"), SIZES)
def test_no_record_has_better_odds_than_a_poisson_batch_gives_it_in_exact_arithmetic(
    num_records, rate, capacity
):
    counts, q = size_table(num_records, rate, capacity).counts, Fraction(rate)
    assert len(counts) == capacity + 1
    assert min(counts) >= 0
    assert sum(counts) == 2**64
    # A set of k records has the chance counts[k] / (n over k), so these are the odds of a record,
    # given k others. It also says that a size is not possible where the one before it is not.
    for k in range(capacity):
        assert (k + 1) * counts[k + 1] * (1 - q) <= (num_records - k) * counts[k] * q


@pytest.mark.parametrize(("num_records", "rate", "capacity"), SIZES)
def test_sizes_are_binomial_given_that_they_fit_to_64_bits(num_records, rate, capacity):
    counts = size_table(num_records, rate, capacity).counts
    with mpmath.workdps(60):
        q, n = mpmath.mpf(rate), num_records
        # From the largest size downwards, so that nothing underflows.
        weights = [mpmath.mpf(1)]
        for k in range(capacity, 0, -1):
            weights.append(weights[-1] * k / (n - k + 1) * (1 - q) / q)
        total = mpmath.fsum(weights)
        exact = [weight / total for weight in reversed(weights)]
        found = [mpmath.mpf(count) / 2**64 for count in counts]
        distance = mpmath.fsum(abs(a - b) for a, b in zip(found, exact, strict=True)) / 2
        mean = mpmath.fsum(k * p for k, p in enumerate(exact))
    assert distance < (capacity + 2) ** 2 * 2.0**-64
    assert size_table(num_records, rate, capacity).mean == pytest.approx(float(mean), rel=1e-12)


def test_the_size_table_agrees_with_scipy():
    sizes, drawn = np.arange(273), stats.binom(60_000, 256 / 60_000)
    found = np.array(size_table(60_000, 256 / 60_000, 272).counts, float) / 2.0**64
    expected = drawn.pmf(sizes) / drawn.cdf(272)
    likely = expected > 1e-15
    np.testing.assert_allclose(found[likely], expected[likely], rtol=1e-3)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_size_is_where_its_word_falls_in_the_table():
    table = size_table(20, 0.4, 9)
    edges = np.cumsum([0, *table.counts], dtype=object)
    for size, (first, end) in enumerate(itertools.pairwise(edges)):
        for word in {first, end - 1} if end > first else ():
            halves = jnp.array([word >> 32, word & 0xFFFFFFFF], jnp.uint32)
            assert table.invert(halves) == size


@pytest.mark.parametrize(
    ("num_records", "batch_size", "capacity"), [(500, 20, None), (30, 12, 12), (12, 9, 10)]
)
def test_drawn_sizes_follow_the_table(num_records, batch_size, capacity):
    sampling = PoissonBatch(num_records=num_records, batch_size=batch_size, max_batch_size=capacity)
    sizes = np.asarray(many(sampling.draw, 20_000).mask.sum(1))
    found = np.bincount(sizes, minlength=sampling.capacity + 1)
    drawn = stats.binom(num_records, sampling.rate)
    expected = 20_000 * drawn.pmf(np.arange(sampling.capacity + 1)) / drawn.cdf(sampling.capacity)
    usual = expected >= 5
    rest = [[values[~usual].sum()] for values in (found, expected)]
    found, expected = (
        np.append(values[usual], other)
        for values, other in zip((found, expected), rest, strict=True)
    )
    assert stats.chisquare(found[expected > 0], expected[expected > 0]).pvalue > 1e-5


@pytest.mark.parametrize(
    ("num_records", "batch_size", "capacity"),
    [(60_000, 256, None), (60_000, 256, 256), (1000, 100, 119), (12, 9, None), (10, 10, None)],
)
def test_the_inclusion_rate_is_that_of_the_exact_formula(num_records, batch_size, capacity):
    sampling = PoissonBatch(num_records=num_records, batch_size=batch_size, max_batch_size=capacity)
    n, q, c = num_records, sampling.rate, sampling.capacity
    # In, and others leave room, of all that has room.
    exact = q * stats.binom.cdf(c - 1, n - 1, q) / stats.binom.cdf(c, n, q)
    assert sampling.inclusion_rate == pytest.approx(exact, rel=1e-9)
    assert sampling.inclusion_rate <= sampling.rate


def test_large_batches_keep_their_mean_and_variance():
    sampling = PoissonBatch(num_records=10_000_000, batch_size=1e4, max_batch_size=10_700)
    table = size_table(10_000_000, sampling.rate, sampling.capacity)
    sizes = np.asarray(
        many(lambda key: table.invert(jax.random.bits(key, (2,), jnp.uint32)), 20_000), float
    )
    std = math.sqrt(1e4 * (1 - 1e-3))  # seven of them are below the capacity
    assert abs(sizes.mean() - 1e4) < 5 * std / math.sqrt(20_000)
    assert abs(sizes.var() / std**2 - 1) < 5 * math.sqrt(2 / 20_000)


def test_every_subset_that_fits_has_its_conditioned_probability():
    sampling = PoissonBatch(num_records=4, batch_size=1.9, max_batch_size=2)
    batch = many(sampling.draw, 60_000)
    members = np.zeros(60_000, int)
    for slot in range(2):
        bits = 1 << np.asarray(batch.indices[:, slot])
        members += np.where(np.asarray(batch.mask[:, slot]), bits, 0)
    q = sampling.rate
    chances = np.array([(q / (1 - q)) ** s.bit_count() * (s.bit_count() <= 2) for s in range(16)])
    chances /= chances.sum()
    for subset, p in enumerate(chances):
        observed = np.mean(members == subset)
        assert abs(observed - p) <= 5 * math.sqrt(p * (1 - p) / 60_000)


def test_the_cost_says_that_sizes_are_conditioned_on_the_capacity():
    sampling = PoissonBatch(num_records=20, batch_size=10, max_batch_size=10)
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    assert sampling.cost(1.0) == ConditionedPoissonDpEvent(0.5, 20, 10, gaussian)


@pytest.mark.parametrize("declared", [None, 60_000])
@pytest.mark.parametrize(
    ("batch_size", "capacity"), [(256, 272), (2048, 2093), (1e-6, 1), (1, 2), (59_999.5, 60_000)]
)
def test_the_default_capacity_is_one_standard_deviation_above_the_mean(
    batch_size, capacity, declared
):
    sampling = PoissonBatch(num_records=60_000, batch_size=batch_size, declared_records=declared)
    assert sampling.capacity == capacity
    assert sampling.capacity > sampling.batch_size


def test_the_default_capacity_of_few_records_is_at_most_all_of_them():
    assert PoissonBatch(num_records=1, batch_size=0.5).capacity == 1
    assert PoissonBatch(num_records=12, batch_size=9).capacity == 11
    assert PoissonBatch(num_records=12, batch_size=12).capacity == 12


def test_a_batch_of_all_records_at_rate_one_is_all_of_them():
    batch = PoissonBatch(num_records=6, batch_size=6).draw(seeded_key(0))
    assert sorted(batch.indices.tolist()) == list(range(6))
    assert batch.mask.all()


@pytest.mark.parametrize("population", [1, 3, 65_536, 65_537, 1_400_000_000, 2**31 - 1])
def test_uniform_indices_are_the_whole_part_of_the_product_in_exact_arithmetic(population):
    edges = [0, 1, 65_535, 65_536, 2**31, 2**32 - 65_536, 2**32 - 2, 2**32 - 1]
    words = np.array(list(itertools.product(edges, edges)), np.uint32).T
    generator = np.random.default_rng(0)
    words = np.hstack([words, generator.integers(0, 2**32, (2, 2000), dtype=np.uint32)])
    expected = [((int(h) << 32) + int(w)) * population >> 64 for h, w in words.T]
    assert jax.jit(uniform_indices, static_argnums=1)(words, population).tolist() == expected


def test_no_index_is_favoured_where_a_remainder_of_32_bits_would_favour_some_by_a_third():
    num_records = 1_400_000_000
    favoured = 2**32 % num_records
    indices = np.asarray(many(lambda key: first_occurrences(key, 2000, num_records), 50))
    share, num = favoured / num_records, indices.size
    assert abs(np.mean(indices < favoured) - share) < 5 * math.sqrt(share * (1 - share) / num)


def test_batches_have_one_static_shape_whatever_was_drawn():
    sampling = PoissonBatch(num_records=50, batch_size=0.5)
    sizes, draw = set(), jax.jit(sampling.draw)
    for seed in range(12):
        batch = draw(seeded_key(seed))
        assert batch.indices.shape == batch.mask.shape == (sampling.capacity,)
        sizes.add(int(batch.mask.sum()))
    assert 0 in sizes
    assert len(sizes) > 1


def test_costs_are_what_was_sampled():
    assert FullBatch(num_records=5).cost(2.0) == dp_accounting.GaussianDpEvent(2.0)
    assert FixedBatch(num_records=100, batch_size=10).cost(
        2.0
    ) == dp_accounting.SampledWithoutReplacementDpEvent(100, 10, dp_accounting.GaussianDpEvent(2.0))
    whole = PoissonBatch(num_records=100, batch_size=10, max_batch_size=100)
    assert whole.cost(2.0) == dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.GaussianDpEvent(2.0)
    )


def test_draws_are_a_function_of_the_key_alone():
    sampling = PoissonBatch(num_records=1000, batch_size=30)
    a, b = sampling.draw(seeded_key(3)), jax.jit(sampling.draw)(seeded_key(3))
    assert (a.indices == b.indices).all()
    assert (a.mask == b.mask).all()
    assert (a.indices != sampling.draw(seeded_key(4)).indices).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonBatch(num_records=10, batch_size=11), "batch_size must be at most"),
        (lambda: PoissonBatch(num_records=10, batch_size=0), "batch_size must be a positive"),
        (lambda: PoissonBatch(num_records=0, batch_size=1), "num_records must be a whole number"),
        (lambda: PoissonBatch(num_records=9, batch_size=4, max_batch_size=3), "max_batch_size"),
        (lambda: FixedBatch(num_records=10, batch_size=11), "batch_size must be at most"),
        (lambda: FixedBatch(num_records=10, batch_size=2.5), "batch_size must be a whole number"),
        (lambda: FullBatch(num_records=2**31), "at most 2147483647"),
        (lambda: FullBatch(num_records=3).cost(0.0), "noise_multiplier must be a positive"),
    ],
)
def test_bad_sampling_is_refused_by_name(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_indices_are_in_uniform_order_so_that_a_prefix_is_a_sample():
    first = np.asarray(many(lambda key: first_occurrences(key, 10, 1000)[0], 20_000))
    assert stats.kstest((first + 0.5) / 1000, "uniform").pvalue > 1e-5
    assert jnp.issubdtype(first_occurrences(seeded_key(0), 10, 1000).dtype, jnp.int32)


@pytest.mark.parametrize("num_records", [3, 7, 30])
def test_a_table_smaller_than_the_batch_has_room_for_is_drawn_without_repeats(num_records):
    sampling = PoissonBatch(num_records=num_records, batch_size=15, declared_records=40)
    batches = jax.vmap(sampling.draw)(jax.random.split(seeded_key(0), 400))
    for indices, mask in zip(*map(np.asarray, batches), strict=True):
        drawn = indices[mask]
        assert len(set(drawn.tolist())) == len(drawn)
        assert (drawn < num_records).all()
    # Each slot is used as often as any other, within five standard errors.
    used = np.asarray(batches.mask).mean(0)
    assert np.abs(used - used.mean()).max() < 5 * np.sqrt(0.25 / 400)


def test_a_stated_batch_is_all_rows_that_are_shown_and_costs_what_is_stated():
    stated = PoissonBatch(num_records=100, batch_size=10)
    batch = StatedBatch(stated=stated, mask=jnp.array([True, True, False]))
    drawn = batch.draw(seeded_key(0))
    assert drawn.indices.tolist() == [0, 1, 2]
    assert drawn.mask.tolist() == [True, True, False]
    assert (batch.num_records, batch.public_records) == (3, 100)
    assert (batch.rate, batch.inclusion_rate) == (stated.rate, stated.inclusion_rate)
    assert batch.cost(2.0) == stated.cost(2.0)


def test_a_batch_of_which_nothing_is_stated_is_not_amplified_and_cannot_be_drawn():
    batch = UnstatedBatch(num_records=100, batch_size=10.0)
    assert batch.cost(2.0) == dp_accounting.GaussianDpEvent(2.0)
    assert batch.inclusion_rate == 0.1
    with pytest.raises(InvalidArgumentError, match="sampling must say how batches are drawn"):
        batch.draw(seeded_key(0))
    with pytest.raises(InvalidArgumentError, match="batch_size must be at most"):
        UnstatedBatch(num_records=10, batch_size=11)
