"""Sampling is exactly what its cost says."""

import itertools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidArgumentError
from tacit.privacy.sampling import (
    FixedBatch,
    FullBatch,
    PoissonBatch,
    _binomial,
    _binomial_table,
    _first_occurrences,
    _shuffled,
    _uniform_indices,
)
from tacit.rng import seeded_key


def many(function, num_draws, seed=0):
    return jax.jit(jax.vmap(function))(jax.random.split(seeded_key(seed), num_draws))


def test_a_full_batch_is_every_record_once():
    batch = FullBatch(num_records=7).draw(seeded_key(0))
    assert batch.indices.tolist() == list(range(7))
    assert batch.mask.all()


@pytest.mark.parametrize(("num_records", "batch_size"), [(1000, 30), (40, 13), (12, 3)])
def test_poisson_inclusion_rates_equal_the_public_rate(num_records, batch_size):
    sampling = PoissonBatch(num_records=num_records, batch_size=batch_size)
    num_draws = 4000
    batch = many(sampling.draw, num_draws)
    counts = np.bincount(np.asarray(batch.indices)[np.asarray(batch.mask)], minlength=num_records)
    z = (counts - num_draws * sampling.rate) / math.sqrt(
        num_draws * sampling.rate * (1 - sampling.rate)
    )
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
        lambda k, n: _shuffled(jax.random.bits(k, (2, n), jnp.uint32)),
        lambda k, n: _first_occurrences(k, 3, n),
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


def test_the_binomial_table_inverts_the_distribution_to_64_bits():
    first, high, low = _binomial_table(60_000, 256 / 60_000)
    fixed = [(int(h) << 32) | int(word) for h, word in zip(high, low, strict=True)]
    assert fixed == sorted(fixed)
    binomial = stats.binom(60_000, 256 / 60_000)
    counts = first + np.arange(len(fixed))
    # The small tail is exact relative to itself on either side.
    lower = np.array([value / 2**64 for value in fixed])
    upper = np.array([(2**64 - value) / 2**64 for value in fixed])
    inside = binomial.cdf(counts) > 1e-15
    np.testing.assert_allclose(lower[inside], binomial.cdf(counts)[inside], rtol=1e-3)
    inside = binomial.sf(counts) > 1e-15
    np.testing.assert_allclose(upper[inside], binomial.sf(counts)[inside], rtol=1e-3)


def test_large_binomials_keep_their_mean_and_variance():
    n, q = 10_000_000, 1e-3
    counts = np.asarray(
        many(lambda key: _binomial(jax.random.bits(key, (2,), jnp.uint32), n, q), 20_000), float
    )
    std = math.sqrt(n * q * (1 - q))
    assert abs(counts.mean() - n * q) < 5 * std / math.sqrt(20_000)
    assert abs(counts.var() / std**2 - 1) < 5 * math.sqrt(2 / 20_000)


def test_truncation_drops_uniformly_and_is_in_the_cost():
    sampling = PoissonBatch(num_records=20, batch_size=10, max_batch_size=10)
    batch = many(sampling.draw, 20_000)
    counts = np.bincount(np.asarray(batch.indices)[np.asarray(batch.mask)], minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-5  # no index is favoured
    assert sampling.cost(1.0) == dp_accounting.TruncatedSubsampledGaussianDpEvent(20, 0.5, 10, 1.0)


@pytest.mark.parametrize(
    ("num_records", "batch_size"),
    [(60_000, 256), (1000, 30), (32_561, 1024.5), (2**31 - 1, 2000), (10_000, 1e-6), (50, 20)],
)
def test_the_default_capacity_is_the_least_that_is_full_once_in_a_million(num_records, batch_size):
    sampling = PoissonBatch(num_records=num_records, batch_size=batch_size)

    def full(capacity):
        return stats.binom.sf(capacity - 1, num_records - 1, sampling.rate)

    assert full(sampling.capacity) <= 1e-6
    assert full(sampling.capacity - 1) > 1e-6


def test_the_default_capacity_of_few_records_is_all_of_them():
    assert PoissonBatch(num_records=1, batch_size=0.5).capacity == 1
    assert PoissonBatch(num_records=12, batch_size=9).capacity == 12


@pytest.mark.parametrize("population", [1, 3, 65_536, 65_537, 1_400_000_000, 2**31 - 1])
def test_uniform_indices_are_the_whole_part_of_the_product_in_exact_arithmetic(population):
    edges = [0, 1, 65_535, 65_536, 2**31, 2**32 - 65_536, 2**32 - 2, 2**32 - 1]
    words = np.array(list(itertools.product(edges, edges)), np.uint32).T
    generator = np.random.default_rng(0)
    words = np.hstack([words, generator.integers(0, 2**32, (2, 2000), dtype=np.uint32)])
    expected = [((int(h) << 32) + int(w)) * population >> 64 for h, w in words.T]
    assert jax.jit(_uniform_indices, static_argnums=1)(words, population).tolist() == expected


def test_no_index_is_favoured_where_a_remainder_of_32_bits_would_favour_some_by_a_third():
    num_records = 1_400_000_000
    favoured = 2**32 % num_records
    indices = np.asarray(many(lambda key: _first_occurrences(key, 2000, num_records), 50))
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
    first = np.asarray(many(lambda key: _first_occurrences(key, 10, 1000)[0], 20_000))
    assert stats.kstest((first + 0.5) / 1000, "uniform").pvalue > 1e-5
    assert jnp.issubdtype(_first_occurrences(seeded_key(0), 10, 1000).dtype, jnp.int32)


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
