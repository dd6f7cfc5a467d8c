"""The engine: what leaves it is a clipped, noisy sum over a sampled batch, and nothing else."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidArgumentError
from tacit.privacy.clipping import Flat, Normalised, PerLayer
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.rng import seeded_key

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)), jnp.float32)


def identity(row, key):
    return row


def release(sampling=None, **changes):
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0} | changes
    return GaussianSum(sampling=sampling or FullBatch(num_records=40), **settings)


def repeated(mechanism, query, data, count, seed=0):
    keys = jax.random.split(seeded_key(seed), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: mechanism(key, query, data)))(keys))


def pairs_drawn(sampling):
    """E size (size - 1)."""
    sizes = np.arange(sampling.capacity + 1)
    if isinstance(sampling, PoissonBatch):
        chances = stats.binom.pmf(sizes, sampling.num_records, sampling.rate)
    else:
        chances = sizes == sampling.capacity
    return np.sum(chances * sizes * (sizes - 1)) / np.sum(chances)


def clipped(rows, clip_norm=1.0):
    rows = np.asarray(rows, np.float64)
    return rows * np.minimum(1, clip_norm / np.linalg.norm(rows, axis=1))[:, None]


@pytest.mark.parametrize(
    "sampling",
    [
        FullBatch(num_records=40),
        PoissonBatch(num_records=40, batch_size=8),
        PoissonBatch(num_records=40, batch_size=8, max_batch_size=8),
        FixedBatch(num_records=40, batch_size=8),
    ],
)
def test_the_estimate_is_unbiased_and_its_noise_has_the_stated_scale(sampling):
    mechanism = release(sampling, noise_multiplier=2.0, clip_norm=0.5)
    draws = repeated(mechanism, identity, ROWS, 4000)
    rows = clipped(ROWS, 0.5)
    # Var(sum of what is drawn), with the chances p and p2 that one and that two records are drawn.
    n, p = 40, sampling.inclusion_rate
    p2 = pairs_drawn(sampling) / (n * (n - 1))
    squares = np.sum(rows**2, 0)
    spread = (p - p2) * squares + (p2 - p**2) * rows.sum(0) ** 2
    variance = mechanism.noise_std**2 + spread / p**2
    error = (draws.mean(0) - rows.sum(0)) / np.sqrt(variance / 4000)
    assert np.abs(error).max() < 5
    assert np.abs(draws.var(0) / variance - 1).max() < 5 * math.sqrt(2 / 4000)


def test_the_noise_is_gaussian_and_independent_across_coordinates_and_calls():
    noise = repeated(release(), lambda row, key: 0 * row, ROWS, 20_000)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-5
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 5 / math.sqrt(20_000)
    lagged = np.mean(noise[1:] * noise[:-1])
    assert abs(lagged) < 5 / math.sqrt(noise[1:].size)


def test_the_estimate_divides_by_the_inclusion_rate_and_never_by_the_realised_batch():
    sampling = PoissonBatch(num_records=40, batch_size=4)
    mechanism = release(sampling, noise_multiplier=0.0)
    counts = repeated(mechanism, lambda row, key: jnp.ones(()), ROWS, 200)
    sizes = counts * sampling.inclusion_rate
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-4)
    assert sizes.std() > 1  # a realised denominator would give 40 every time


def test_an_empty_batch_is_an_ordinary_release_of_noise():
    mechanism = release(PoissonBatch(num_records=40, batch_size=1e-9))
    noise = repeated(mechanism, identity, ROWS, 2000) * 1e-9 / 40
    assert noise.shape == (2000, 3)
    assert np.isfinite(noise).all()
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-5
    assert mechanism.cost == mechanism.sampling.cost(1.0)


@pytest.mark.parametrize("rule", [Flat(), Normalised(), PerLayer()])
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(rule):
    mechanism = release(noise_multiplier=0.0, clipping=rule, clip_norm=0.7)

    def loss(w, row, key):
        return w["a"] @ row + w["b"] * row[0] ** 2

    w = {"a": jnp.ones(3), "b": jnp.ones(())}
    gradient = jax.jit(lambda rows: mechanism.gradient(seeded_key(0), loss, w, rows))

    def total(fifth):
        found = gradient(ROWS.at[5].set(fifth))
        return np.append(np.asarray(found["a"], np.float64), found["b"])

    for bad in (jnp.nan, jnp.inf, 1e25, 1e6):
        assert np.linalg.norm(total(bad) - total(0.0)) <= 0.7 + 1e-5


def test_a_gradient_release_equals_the_query_release_of_the_gradient():
    def loss(w, row, key):
        return jnp.tanh(w @ row) + w[0] * jax.random.normal(key)

    w = jnp.array([0.1, 0.2, 0.3])
    mechanism = release(PoissonBatch(num_records=40, batch_size=8))
    fast = mechanism.gradient(seeded_key(4), loss, w, ROWS)
    slow = mechanism(seeded_key(4), lambda row, key: jax.grad(loss)(w, row, key), ROWS)
    np.testing.assert_allclose(fast, slow, rtol=1e-5)


def test_a_records_key_follows_its_index_and_not_its_place_in_the_batch():
    # Whatever else is in the batch, and wherever the record lands, its mask is the same.
    full = release(noise_multiplier=0.0)
    wide = release(
        PoissonBatch(num_records=40, batch_size=40, max_batch_size=40), noise_multiplier=0
    )

    def query(row, key):
        return row[0] * jax.random.bernoulli(key).astype(jnp.float32)

    np.testing.assert_allclose(
        full(seeded_key(0), query, ROWS), wide(seeded_key(0), query, ROWS), rtol=1e-5
    )


@pytest.mark.parametrize("chunk_size", [1, 7, 40, 100])
def test_chunking_changes_memory_and_nothing_else(chunk_size):
    def query(row, key):
        return row * jax.random.bernoulli(key, 0.5, row.shape)

    whole = release()(seeded_key(1), query, ROWS)
    chunked = release(chunk_size=chunk_size)(seeded_key(1), query, ROWS)
    np.testing.assert_allclose(whole, chunked, rtol=1e-4, atol=1e-5)


def test_noise_is_added_once_per_release_whatever_the_chunk_size():
    # Accumulating over microbatches must not add up their noise.
    noise = repeated(release(chunk_size=1), lambda row, key: 0 * row, ROWS, 4000)
    assert noise.std() == pytest.approx(1.0, abs=5 / math.sqrt(2 * noise.size))


def test_a_traced_multiplier_replaces_the_configured_one():
    mechanism = release()
    noise = np.asarray(
        jax.jit(
            jax.vmap(lambda key, s: mechanism(key, lambda r, k: 0 * r, ROWS, noise_multiplier=s)),
        )(jax.random.split(seeded_key(0), 6000), jnp.repeat(jnp.array([0.5, 3.0]), 3000))
    )
    assert noise[:3000].std() == pytest.approx(0.5, rel=0.05)
    assert noise[3000:].std() == pytest.approx(3.0, rel=0.05)


def test_low_precision_parameters_get_float32_sums_and_noise():
    w = jnp.ones(3, jnp.bfloat16)
    result = release().gradient(
        seeded_key(0), lambda w, row, key: jnp.sum(w * row.astype(jnp.bfloat16)), w, ROWS
    )
    assert result.dtype == jnp.float32


def test_a_release_without_noise_says_that_it_is_not_private():
    mechanism = release(noise_multiplier=0.0, clip_norm=math.inf)
    assert mechanism.cost == dp_accounting.NonPrivateDpEvent()
    assert not mechanism.is_private
    np.testing.assert_allclose(mechanism(seeded_key(0), identity, ROWS), ROWS.sum(0), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": math.inf}, "clip_norm must be finite when noise_multiplier > 0"),
        ({"clip_norm": 0.0}, "clip_norm must be a positive number"),
        ({"clip_norm": 1e-20}, "clip_norm must be at least"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a non-negative"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be a number"),
        ({"chunk_size": 0}, "chunk_size must be a whole number"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        release(**changes)


def test_a_table_of_another_length_than_configured_is_refused():
    with pytest.raises(InvalidArgumentError, match="data has 39 records"):
        release()(seeded_key(0), identity, ROWS[:39])
    with pytest.raises(InvalidArgumentError, match="one row for each record"):
        release()(seeded_key(0), lambda r, k: r[0], (ROWS, ROWS[:3]))


def test_what_leaves_is_a_multiple_of_the_lattices_spacing():
    # With a clip norm that is a power of two and little noise, float32 holds the integers exactly.
    sums = repeated(release(clip_norm=0.5, noise_multiplier=0.01), identity, ROWS, 200)
    units = sums.astype(np.float64) * 2**18 / 0.5
    assert (units == np.round(units)).all()
    assert np.unique(units).size > 50
    assert np.gcd.reduce(units.astype(np.int64).ravel()) == 1


def times_right(guess, mechanism, query, tables, count):
    """How often an adversary names the table that a release was made from."""
    run = jax.jit(lambda key, table: mechanism(key, query, table))
    keys = jax.random.split(seeded_key(0), count)
    return sum(guess(np.asarray(run(key, tables[i % 2]))) == i % 2 for i, key in enumerate(keys))


def test_the_last_bits_of_a_single_precision_sum_do_not_tell_the_table():
    # A value near zero is the noise alone, in full precision, or noise that cancelled the record's
    # contribution: then it is a multiple of that number's last bit. With epsilon 0.2 an honest
    # adversary is right about half the time.
    size = 2**20
    contribution = np.float32(0.9 / math.sqrt(size))
    unit = float(np.spacing(contribution)) / 2

    def guess(output):
        small = output[np.abs(output) < contribution / 8].astype(float)
        return int((small / unit % 1 == 0).all())

    mechanism = release(FullBatch(num_records=2), noise_multiplier=20.0)
    tables = jnp.zeros(2), jnp.array([contribution, 0.0])
    right = times_right(guess, mechanism, lambda x, key: jnp.full(size, x), tables, 40)
    assert abs(right - 20) < 5 * math.sqrt(40) / 2


def test_the_last_bits_of_a_double_precision_sum_do_not_tell_the_table():
    # The bits below those of the noise would be the sum's own.
    with jax.enable_x64(True):
        table = jnp.asarray(np.random.default_rng(0).normal(size=(10, 3)))
        tables = table, table.at[4].set(0.0)
        whole = FullBatch(num_records=10)
        quiet = release(whole, noise_multiplier=0.0)
        sums = [np.asarray(quiet(seeded_key(0), identity, table)) for table in tables]

        def guess(output):
            noises = [output - sum_ for sum_ in sums]
            lost = [np.abs(noise.astype(np.float32) - noise) < 1e-13 for noise in noises]
            return int(lost[1].mean() > lost[0].mean())

        mechanism = release(whole, noise_multiplier=20.0)
        right = times_right(guess, mechanism, identity, tables, 100)
    assert abs(right - 50) < 5 * math.sqrt(100) / 2


@pytest.mark.parametrize("multiplier", [1.0, 0.0, jnp.float32(1.0)])
def test_a_release_configured_without_noise_takes_no_multiplier(multiplier):
    mechanism = release(noise_multiplier=0.0)
    with pytest.raises(InvalidArgumentError, match="configured without noise"):
        mechanism(seeded_key(0), identity, ROWS, noise_multiplier=multiplier)
    with pytest.raises(InvalidArgumentError, match="configured without noise"):
        jax.jit(lambda s: mechanism(seeded_key(0), identity, ROWS, noise_multiplier=s))(multiplier)
    assert mechanism.cost_of(1.0) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_private_release_takes_only_a_positive_multiplier(bad):
    mechanism = release()
    for value in (bad, jnp.float32(bad), np.float64(bad)):
        with pytest.raises(InvalidArgumentError, match="noise_multiplier must be"):
            mechanism(seeded_key(0), identity, ROWS, noise_multiplier=value)
        with pytest.raises(InvalidArgumentError, match="noise_multiplier must be"):
            mechanism.gradient(
                seeded_key(0), lambda w, r, k: w @ r, ROWS[0], ROWS, noise_multiplier=value
            )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_traced_multiplier_that_is_not_positive_gives_nan_and_never_the_sum(bad):
    run = jax.jit(lambda s: release()(seeded_key(0), identity, ROWS, noise_multiplier=s))
    assert jnp.isnan(run(bad)).all()


def test_noise_that_its_integers_cannot_hold_is_refused_before_a_record_is_read():
    with pytest.raises(InvalidArgumentError, match=r"at most 262144; got 300000.*larger budget"):
        release(noise_multiplier=300_000.0)
    with pytest.raises(InvalidArgumentError, match="at most 262144"):
        release()(seeded_key(0), identity, ROWS, noise_multiplier=1e9)
