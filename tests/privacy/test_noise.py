"""The noise is normal, independent, as long-tailed and as precise as it says."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidArgumentError
from tacit.privacy.noise import (
    MAX_MAGNITUDE,
    gaussian_noise,
    normals_from_words,
    rounded_to_grid,
    tail_delta,
)
from tacit.rng import seeded_key

EDGES = [
    0,
    1,
    2,
    255,
    256,
    65535,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 256,
    2**32 - 2,
    2**32 - 1,
]


def exact_normals(words):
    """The documented map, in double precision and integers of any size."""
    high, angle, shared = words[0:2], words[2:4], words[4].astype(object)
    low = ((angle & 255).astype(object) << 16) + np.stack([shared >> 16, shared & 65535])
    numerator = 2 * ((high.astype(object) << 24) + low) + 1
    # Near one the logarithm of a double loses what log1p of the exact complement keeps.
    u, complement = (np.array(n / 2**57, float) for n in (numerator, 2**57 - numerator))
    radius = np.sqrt(-2 * np.where(u < 0.5, np.log(u), np.log1p(-np.minimum(complement, 0.5))))
    direction = angle >> 8
    theta = ((direction >> 3) + 0.5) * (np.pi / 4 / 2**21)
    swap = direction & 4 != 0
    x = np.where(swap, np.sin(theta), np.cos(theta)) * np.where(direction & 2, -1, 1)
    y = np.where(swap, np.cos(theta), np.sin(theta)) * np.where(direction & 1, -1, 1)
    return np.concatenate([radius * x, radius * y])


def edge_words():
    radii_and_angles = np.array(list(itertools.product(EDGES, EDGES)), np.uint32)
    columns = [
        [high, high, angle, angle, shared]
        for (high, angle), shared in itertools.product(radii_and_angles, (0, 1, 2**16, 2**32 - 1))
    ]
    return np.array(columns, np.uint32).T


def random_words(num=50_000):
    return np.random.default_rng(0).integers(0, 2**32, (5, num), dtype=np.uint32)


@pytest.mark.parametrize("words", [edge_words(), random_words()], ids=["edges", "random"])
def test_the_map_is_exact_to_a_relative_error_of_1e_6(words):
    result = np.asarray(normals_from_words(jnp.asarray(words)), float)
    np.testing.assert_allclose(result, exact_normals(words), rtol=1e-6, atol=0)


def test_the_edge_of_the_tail_is_at_least_8_5_and_is_where_it_says():
    largest = np.abs(np.asarray(normals_from_words(jnp.asarray(edge_words())))).max()
    assert largest == pytest.approx(MAX_MAGNITUDE, rel=1e-6)
    assert MAX_MAGNITUDE >= 8.5
    assert math.exp(-(MAX_MAGNITUDE**2) / 2) == pytest.approx(2.0**-57)


def test_every_value_is_finite_and_its_pair_stays_within_the_edge():
    for words in (edge_words(), random_words()):
        x0, x1, y0, y1 = np.asarray(normals_from_words(jnp.asarray(words)), float)
        norms = np.hypot([x0, x1], [y0, y1])
        assert np.isfinite(norms).all()
        assert norms.max() <= MAX_MAGNITUDE * (1 + 1e-6)


def test_the_tail_has_its_exact_weight_beyond_every_power_of_two():
    # P(pair norm > r) = exp(-r^2 / 2): the words below k 2^24 must have norms beyond the quantile.
    for exponent in range(1, 32):
        threshold = np.uint32(2**exponent)
        words = np.zeros((5, 2), np.uint32)
        words[0] = [threshold - 1, threshold]
        words[2, 0], words[4, 0] = 255, 2**32 - 1
        below, above = (np.hypot(*pair) for pair in np.asarray(normals_from_words(words))[[0, 2]].T)
        quantile = math.sqrt(2 * (32 - exponent) * math.log(2))
        assert below >= quantile * (1 - 1e-6)
        assert above <= quantile * (1 + 1e-6)
        assert below - above < 1e-4


def draw(num, seed=0, std=1.0):
    shape = jax.ShapeDtypeStruct((num,), jnp.float32)
    return np.asarray(jax.jit(lambda k: gaussian_noise(k, shape, std=std))(seeded_key(seed)), float)


def test_moments_are_those_of_a_normal():
    z, num = draw(1_000_000), 1_000_000
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        assert abs(np.mean(z**power) - expected) < 5 * math.sqrt(variance / num)


def test_the_distribution_passes_kolmogorov_smirnov_and_its_tails_have_the_right_counts():
    z = draw(1_000_000, seed=1)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    for edge in (2, 3, 4):
        for count, tail in (
            (np.sum(z > edge), stats.norm.sf(edge)),
            (np.sum(z < -edge), stats.norm.sf(edge)),
        ):
            assert abs(count - 1e6 * tail) < 5 * math.sqrt(1e6 * tail)


def test_values_of_a_leaf_are_independent_of_each_other():
    num = 400_000
    z = draw(num, seed=2)
    # Lags of one, of the generator's groups, and of a pair's members (a quarter of the values).
    for lag in (1, 2, 16, 128, 2048, num // 4, num // 2, 3 * num // 4):
        head, tail = z[:-lag], z[lag:]
        assert abs(np.mean(head * tail)) < 5 / math.sqrt(num - lag)
        assert abs(np.mean((head**2 - 1) * (tail**2 - 1))) < 5 * 2 / math.sqrt(num - lag)


def test_leaves_and_keys_are_independent_of_each_other():
    tree = {"w": jnp.zeros((300, 300)), "b": [jnp.zeros(90_000), jnp.zeros(90_000)]}
    first, second = (gaussian_noise(seeded_key(s), tree, std=1.0) for s in (3, 4))
    streams = np.stack([np.ravel(x) for x in jax.tree.leaves([first, second])])
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(90_000)


def test_noise_has_the_shapes_of_the_tree_and_at_least_single_precision():
    tree = {
        "half": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16),
        "single": jnp.zeros(()),
        "empty": jnp.zeros((0, 4)),
        "float16": jnp.zeros((5,), jnp.float16),
    }
    noise = gaussian_noise(seeded_key(0), tree, std=1.0)
    assert jax.tree.map(jnp.shape, noise) == jax.tree.map(lambda x: x.shape, tree)
    assert {leaf.dtype for leaf in jax.tree.leaves(noise)} == {jnp.dtype("float32")}
    with jax.enable_x64(True):
        assert gaussian_noise(seeded_key(0), jnp.zeros(2, "float64"), std=1.0).dtype == "float64"


def test_an_empty_tree_has_empty_noise():
    assert gaussian_noise(seeded_key(0), {"w": jnp.zeros((0, 2))}, std=1.0)["w"].shape == (0, 2)
    assert gaussian_noise(seeded_key(0), {}, std=1.0) == {}


def test_the_standard_deviation_scales_and_may_be_traced():
    shape = jnp.zeros(1000)
    unit = gaussian_noise(seeded_key(5), shape, std=1.0)
    scaled = jax.jit(lambda std: gaussian_noise(seeded_key(5), shape, std=std))(2.5)
    np.testing.assert_allclose(scaled, 2.5 * unit, rtol=1e-6)


@pytest.mark.parametrize("std", [0, 0.0, jnp.float32(0)])
def test_no_standard_deviation_is_no_noise(std):
    assert (gaussian_noise(seeded_key(5), jnp.zeros(10_000), std=std) == 0).all()


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf])
def test_a_standard_deviation_that_makes_no_sense_is_refused(std):
    with pytest.raises(InvalidArgumentError, match="std must be"):
        gaussian_noise(seeded_key(0), jnp.zeros(2), std=std)


def test_integer_leaves_are_refused():
    with pytest.raises(InvalidArgumentError, match="floating leaves; got int32"):
        gaussian_noise(seeded_key(0), jnp.arange(3), std=1.0)


def test_noise_agrees_jitted_mapped_and_without_compilation():
    noise = lambda key: gaussian_noise(key, {"w": jnp.zeros((7, 3)), "b": jnp.zeros(2)}, std=1.0)  # noqa: E731
    flat = lambda key: jnp.concatenate([x.ravel() for x in jax.tree.leaves(noise(key))])  # noqa: E731
    keys = jax.random.split(seeded_key(6), 3)
    mapped = jax.jit(jax.vmap(flat))(keys)
    with jax.disable_jit():
        plain = jnp.stack([flat(key) for key in keys])
    # Fused and unfused arithmetic may round differently; the bits behind them are the same.
    np.testing.assert_allclose(mapped, plain, rtol=2e-6)
    np.testing.assert_allclose(mapped[1], jax.jit(flat)(keys[1]), rtol=2e-6)


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 1.3, 4.0])
@pytest.mark.parametrize("num_pairs", [1, 10, 10_000])
def test_the_tail_bound_covers_a_record_in_one_pair_or_spread_over_all(noise_multiplier, num_pairs):
    # Exactly: a pair that a record moved lies outside the disc around where it would else have
    # been. This covers the pairs that were cut, and those in the outermost ring.
    def outside(shift):
        return stats.ncx2.sf(MAX_MAGNITUDE**2, 2, shift**2)

    bound = tail_delta(2 * num_pairs, 1, noise_multiplier)
    shift = 1 / noise_multiplier
    assert num_pairs * outside(shift / math.sqrt(num_pairs)) < bound
    assert outside(shift) + (num_pairs - 1) * 2.0**-57 < bound


def test_the_tail_costs_far_less_than_delta_for_a_large_network():
    assert tail_delta(2_400_000, 3515, 1.3) < 1e-5 / 100


def test_the_cost_of_the_tail_grows_with_values_and_releases_and_falls_with_noise():
    base = tail_delta(1000, 10, 1.0)
    assert tail_delta(2000, 10, 1.0) > base
    assert tail_delta(1000, 20, 1.0) == pytest.approx(2 * base)
    assert tail_delta(1000, 10, 2.0) < base
    assert tail_delta(1000, 10, math.inf) == 10 * 500 * 2.0**-57
    assert tail_delta(1000, 10, 0.2) == 1.0
    assert tail_delta(1000, 10**6, 0.3) <= 1.0
    assert tail_delta(3, 1, math.inf) == tail_delta(4, 1, math.inf)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 1, 1.0), "num_values"), ((1, 0, 1.0), "num_releases"), ((1, 1, 0.0), "noise_multiplier")],
)
def test_the_bound_refuses_arguments_without_meaning(arguments, name):
    with pytest.raises(InvalidArgumentError, match=name):
        tail_delta(*arguments)


@pytest.mark.parametrize("std", [1.0, 1.99999, 2.0, 3e-9, 20.0, 1e12])
def test_rounded_values_are_the_nearest_multiples_of_a_power_of_two_near_a_twentieth_of_std(std):
    spacing = 2.0 ** (math.floor(math.log2(std)) - 4)
    assert std / 32 < spacing <= std / 16
    noisy = draw(20_000, std=std)
    rounded = np.asarray(jax.jit(rounded_to_grid)(jnp.asarray(noisy, "float32"), std=std), float)
    multiples = rounded / spacing
    assert (multiples == np.round(multiples)).all()
    assert np.abs(rounded - noisy).max() <= spacing / 2
    assert len(np.unique(multiples)) > 100


def test_rounding_is_unbiased_wherever_the_sum_lies_and_adds_next_to_no_variance():
    # std = 1 has the coarsest grid, 1/16; the sums lie at points of a cell.
    num = 400_000
    for sum_ in (0.0, 1 / 64, 1 / 32, 0.05, 100.04):
        exact = sum_ + draw(num, seed=3)
        error = np.asarray(rounded_to_grid(jnp.asarray(exact, "float32"), std=1.0), float) - exact
        assert abs(error.mean()) < 5 / 16 / math.sqrt(12 * num)
        assert error.var() == pytest.approx(1 / 16**2 / 12, rel=0.02)
        assert abs(np.mean(error * (exact - sum_))) < 5 / 16 / math.sqrt(12 * num)


@pytest.mark.parametrize("std", [0, 0.0, jnp.float32(0)])
def test_a_sum_without_noise_is_not_rounded(std):
    values = jnp.array([0.1, -1e-20, 3e30])
    assert (jax.jit(rounded_to_grid)(values, std=std) == values).all()


def test_rounding_keeps_the_precision_of_each_leaf():
    with jax.enable_x64(True):
        tree = {"single": jnp.ones(2, "float32"), "double": jnp.ones(2, "float64") / 3}
        rounded = rounded_to_grid(tree, std=1.0)
    assert rounded["single"].dtype == "float32"
    assert rounded["double"].dtype == "float64"
    assert rounded["double"].tolist() == [5 / 16] * 2
