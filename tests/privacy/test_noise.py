"""The noise has exactly the law of a rounded Gaussian, on every path to it."""

import itertools
import json
import math
import random

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

from privacy import make_vectors
from tacit import native
from tacit.errors import InvalidArgumentError
from tacit.privacy import noise, refinement
from tacit.privacy.lattice import LIMB_BITS
from tacit.privacy.noise import integers_from_words, noisy, rounded_gaussian
from tacit.rng import seeded_key

RATIOS = [0.3, 7e5, 2.0**40]
EDGES = [
    0,
    1,
    2,
    3,
    2**16,
    2**29 - 1,
    2**29,
    2**30,
    2**31 - 1,
    2**31,
    2**31 + 1,
    2**32 - 2,
    2**32 - 1,
]


def as_integers(high_and_low):
    high, low = (np.asarray(word).astype(np.int64) for word in high_and_low)
    return (high << 32) | low


def mapped(words, further, ratio):
    """The integers of uint32[4, n] words and uint32[16, n] further words, compiled."""
    further = jnp.asarray(further).reshape(2, refinement.FURTHER_WORDS, -1)
    function = jax.jit(
        lambda w, v: integers_from_words(w, lambda column: v[:, :, column], ratio=ratio)
    )
    return as_integers(function(jnp.asarray(words), further))


def exact(words, further, ratio):
    columns = zip(np.transpose(words), np.transpose(further), strict=True)
    return np.array([make_vectors.exact_integers(w, v, ratio) for w, v in columns]).T


def random_words(num, seed=0):
    words = np.random.default_rng(seed).integers(0, 2**32, (20, num), dtype=np.uint32)
    return words[:4], words[4:]


def edge_words():
    """Radii near zero, one half and one, with angles near multiples of an eighth of a turn."""
    generator = np.random.default_rng(1)
    columns = []
    for first, second in itertools.product(EDGES, EDGES):
        other = generator.integers(0, 2**32, 2)
        columns += [[first, second, *other], [*other, first, second]]
    powers = [[*divmod(2**bit, 2**32), *divmod(2**bit, 2**32)] for bit in range(64)]
    words = np.array(columns + powers, np.uint32).T
    return words, generator.choice([0, 2**32 - 1, 77], (16, words.shape[1])).astype(np.uint32)


@pytest.fixture
def change(monkeypatch):
    """Changes a constant of a module, and forgets what was compiled before and after."""

    def set_(module, name, value):
        monkeypatch.setattr(module, name, value)
        jax.clear_caches()

    yield set_
    jax.clear_caches()


def test_the_published_vectors_are_reproduced():
    vectors = json.loads(make_vectors.PATH.read_text())
    assert vectors == make_vectors.vectors()
    for ratio in {vector["ratio"] for vector in vectors}:
        chosen = [vector for vector in vectors if vector["ratio"] == ratio]
        words, further = (
            np.array([[int(word, 16) for word in v[name]] for v in chosen], np.uint32).T
            for name in ("words", "further_words")
        )
        found = mapped(words, further, float.fromhex(ratio))
        np.testing.assert_array_equal(found.T, [vector["integers"] for vector in chosen])


@pytest.mark.parametrize(
    "ratio", [RATIOS[1], *(pytest.param(r, marks=pytest.mark.slow) for r in RATIOS[::2])]
)
@pytest.mark.parametrize("words", [edge_words(), random_words(1000)], ids=["edges", "random"])
def test_double_precision_and_refinement_give_the_integers_of_the_definition(words, ratio, change):
    expected = exact(*words, ratio)
    np.testing.assert_array_equal(mapped(*words, ratio), expected)
    change(refinement, "RELATIVE_ERROR", math.inf)
    np.testing.assert_array_equal(mapped(*words, ratio), expected)


def undecided(words, ratio):
    return np.asarray(refinement.in_double_precision(jnp.asarray(words), double_words(ratio))[2])


def double_words(ratio):
    return jnp.asarray(np.array([ratio]).view(np.uint32))


@pytest.mark.parametrize("ratio", [1.0, 7e5])
def test_words_that_64_bits_cannot_decide_are_refined(ratio):
    generator = random.Random(2)
    integers = [int(ratio * generator.uniform(0.5, 3)) for _ in range(50)]
    chosen = list(itertools.product(integers, (64, 250), (False, True)))
    columns = [
        make_vectors.at_boundary(generator, ratio, integer, num_bits=num_bits, above=above)
        for integer, num_bits, above in chosen
    ]
    words, further = (np.array(part, np.uint32).T for part in zip(*columns, strict=True))
    assert undecided(words, ratio).all()
    expected = [integer + above for integer, _, above in chosen]
    np.testing.assert_array_equal(mapped(words, further, ratio)[0], expected)


def test_the_lowest_cell_is_never_decided_and_few_others_are_left():
    words = np.array([[0, 0, 5, 5], [0, 1, 5, 5]], np.uint32).T
    assert undecided(words, 1e-9).tolist() == [True, False]
    # At ratio 7e5 a pair is left with probability 2 * 2 * 2^-46 * 0.8 * 7e5, about 3e-8.
    assert not undecided(random_words(100_000)[0], 7e5).any()


@pytest.mark.parametrize("words", [edge_words()[0], random_words(3000)[0]], ids=["edges", "random"])
def test_the_errors_of_double_precision_are_within_their_bounds_and_far_below_in_a_cells_middle(
    words,
):
    ratio = 7e5
    words = words[:, (words[0] | words[1]) != 0]
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(refinement._values_and_errors)(words, double_words(ratio)))
    ends = {"low": [0] * 16, "high": [2**32 - 1] * 16, "middle": ([1 << 31] + [0] * 7) * 2}
    worst = 0.0
    for column, value_and_error in zip(words.T, np.transpose(found, (2, 0, 1)), strict=True):
        for end, further in ends.items():
            exacts = make_vectors.exact_values(column, further, ratio, precision=400)
            for (value, error), true in zip(value_and_error, exacts, strict=True):
                difference = abs(mpmath.mpf(value) - true)
                assert difference <= error
                if end == "middle":
                    worst = max(worst, float(difference / abs(true)))
    assert 0 < worst < refinement.RELATIVE_ERROR / 16


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5, 10.0])
def test_probabilities_on_small_lattices_are_those_of_the_rounded_normal(ratio):
    num = 1_000_000
    draws = as_integers(rounded_gaussian(seeded_key(1), ratio=ratio, num_columns=num // 2)).ravel()
    edge = max(1, int(3.5 * ratio))
    k = np.arange(-edge, edge + 1)
    inner = stats.norm.cdf((k + 0.5) / ratio) - stats.norm.cdf((k - 0.5) / ratio)
    tail = stats.norm.sf((edge + 0.5) / ratio)
    counts = [(draws < -edge).sum(), *((draws == i).sum() for i in k), (draws > edge).sum()]
    expected = np.array([tail, *inner, tail])
    assert stats.chisquare(counts, num * expected / expected.sum()).pvalue > 1e-4


def test_large_ratios_give_normal_moments_and_tails():
    num, ratio = 1_000_000, 7e5
    z = as_integers(rounded_gaussian(seeded_key(2), ratio=ratio, num_columns=num // 2)).ravel()
    z = z / ratio
    assert stats.kstest(z, "norm").pvalue > 1e-4
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        assert abs(np.mean(z**power) - mean) < 5 * math.sqrt(variance / num)
    for edge in (2, 3, 4):
        tail = num * stats.norm.sf(edge)
        for count in (np.sum(z > edge), np.sum(z < -edge)):
            assert abs(count - tail) < 5 * math.sqrt(tail)


def test_the_tail_has_its_exact_weight_beyond_every_power_of_two():
    # P(norm of a pair > r) = exp(-r^2 / 2): u below 2^-n has its pair beyond the quantile.
    ratio, exponents = 2.0**30, np.arange(1, 280)
    beyond, within = (
        mapped(
            np.concatenate([words[:2], np.zeros_like(words[:2])]),
            np.concatenate([words[2:], np.zeros_like(words[2:])]),
            ratio,
        )[0]
        for words in (
            np.array(
                [make_vectors.split(2 ** (320 - int(n)) - i, 10) for n in exponents], "uint32"
            ).T
            for i in (1, 0)
        )
    )
    quantiles = ratio * np.sqrt(2 * exponents * math.log(2))
    np.testing.assert_allclose(beyond, quantiles, rtol=0, atol=1)
    assert ((beyond == within) | (beyond == within + 1)).all()


def test_values_are_independent_of_each_other_and_of_other_keys():
    num = 400_000
    first, second = (
        as_integers(rounded_gaussian(seeded_key(s), ratio=7e5, num_columns=num)) / 7e5
        for s in (3, 4)
    )
    for a, b in [(first[0], first[1]), (first[0], second[0]), (first[1], second[1])]:
        for power in (1, 2):
            assert abs(np.corrcoef(a**power, b**power)[0, 1]) < 5 / math.sqrt(num)
    flat = first.ravel()
    for lag in (1, 2, 16, 128, 2048, num // 4):
        head, tail = flat[:-lag], flat[lag:]
        assert abs(np.mean(head * tail)) < 5 / math.sqrt(len(head))
        assert abs(np.mean((head**2 - 1) * (tail**2 - 1))) < 5 * 2 / math.sqrt(len(head))


def by_definition(key, *, ratio, num_columns):
    """The whole draw from its words, and each column's further words from a key of its own."""
    words = jax.random.bits(key, (4, num_columns), jnp.uint32)
    keys = jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(num_columns))
    further = jax.vmap(lambda k: jax.random.bits(k, (16,), jnp.uint32))(keys).T
    return mapped(words, further, ratio)


@pytest.mark.parametrize("key", [seeded_key(5), jax.random.key(5)], ids=["chacha20", "threefry"])
@pytest.mark.parametrize("num_columns", [3, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_draw_is_what_its_words_say_and_a_slice_is_a_part_of_it(key, num_columns):
    whole = by_definition(key, ratio=7e5, num_columns=num_columns)
    found = as_integers(rounded_gaussian(key, ratio=7e5, num_columns=num_columns))
    np.testing.assert_array_equal(found, whole)
    length = -(-num_columns // 3)
    cut = jax.jit(
        lambda start: rounded_gaussian(
            key, ratio=7e5, num_columns=num_columns, first_column=start, length=length
        )
    )
    for start in range(0, num_columns - length + 1, max(1, num_columns // 50)):
        np.testing.assert_array_equal(as_integers(cut(start)), whole[:, start : start + length])


def test_a_slice_that_needs_refinement_has_the_further_words_of_its_own_columns(change):
    whole = by_definition(seeded_key(6), ratio=2.0**40, num_columns=50)
    change(refinement, "RELATIVE_ERROR", math.inf)
    for start, length in [(0, 9), (41, 9), (17, 3)]:
        part = rounded_gaussian(
            seeded_key(6), ratio=2.0**40, num_columns=50, first_column=start, length=length
        )
        np.testing.assert_array_equal(as_integers(part), whole[:, start : start + length])


@pytest.mark.parametrize("num_columns", [4096, pytest.param(5001, marks=pytest.mark.slow)])
def test_a_draw_in_parts_is_the_same_draw(num_columns, change, monkeypatch):
    monkeypatch.setattr(native, "_library", None)  # which has parts of its own
    whole = by_definition(seeded_key(7), ratio=2.0**33, num_columns=num_columns)
    integers = np.arange(2 * num_columns, dtype=np.int32).reshape(1, 2, -1)
    change(noise, "_PART", 1024)
    found = rounded_gaussian(seeded_key(7), ratio=2.0**33, num_columns=num_columns)
    np.testing.assert_array_equal(as_integers(found), whole)
    sums = noisy(
        seeded_key(7), integers, ratio=2.0**33, scale=0.5, num_columns=num_columns, dtype="float32"
    )
    np.testing.assert_array_equal(sums, (0.5 * (whole + integers[0])).astype(np.float32))


def released(key, integers, **changes):
    arguments = {"ratio": 1e3, "scale": 0.1, "num_columns": integers.shape[-1], **changes}
    return noisy(key, integers, **arguments)


INTEGERS = np.random.default_rng(8).integers(-(2**31), 2**31, (2, 2, 40)).astype(np.int32)


def test_a_release_is_the_scaled_sum_of_both_limbs_and_the_draw():
    draw = as_integers(rounded_gaussian(seeded_key(8), ratio=2.0**40, num_columns=40))
    for num_limbs in (1, 2):
        limbs = INTEGERS[:num_limbs].astype(np.int64)
        total = sum(limb << LIMB_BITS * i for i, limb in enumerate(limbs)) + draw
        found = released(seeded_key(8), jnp.asarray(INTEGERS[:num_limbs]), ratio=2.0**40)
        np.testing.assert_array_equal(found, (0.1 * total.astype(float)).astype(np.float32))


def test_a_release_depends_on_the_limbs_only_through_their_sum():
    moved = INTEGERS // 4 + np.array([1 << LIMB_BITS, -1], np.int32)[:, None, None] * 1000
    np.testing.assert_array_equal(
        released(seeded_key(9), jnp.asarray(moved)),
        released(seeded_key(9), jnp.asarray(INTEGERS // 4)),
    )
    low = INTEGERS[:1] // 2
    padded = np.concatenate([low, np.zeros_like(low)])
    np.testing.assert_array_equal(
        released(seeded_key(9), jnp.asarray(low)), released(seeded_key(9), jnp.asarray(padded))
    )


def test_a_release_has_the_dtype_that_was_asked_for_and_is_cast_once():
    single = released(seeded_key(10), jnp.asarray(INTEGERS))
    assert single.dtype == jnp.float32
    with jax.enable_x64(True):
        double = released(seeded_key(10), jnp.asarray(INTEGERS), dtype=jnp.float64)
        assert double.dtype == jnp.float64
        np.testing.assert_array_equal(np.asarray(double).astype(np.float32), single)


@pytest.mark.parametrize("everything", [False, True], ids=["double", "refined"])
def test_all_transformations_give_the_same_bits(everything, change):
    if everything:
        change(refinement, "RELATIVE_ERROR", math.inf)
    keys, integers = jax.random.split(seeded_key(11), 3), jnp.asarray(INTEGERS)
    one = lambda key: released(key, integers)  # noqa: E731
    eager = np.stack([one(key) for key in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(keys), eager)
    scanned = jax.jit(lambda keys: lax.scan(lambda _, key: (None, one(key)), None, keys)[1])
    np.testing.assert_array_equal(scanned(keys), eager)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(one)(keys[0]), eager[0])


def test_each_device_of_a_mesh_can_draw_its_own_slice():
    mesh = Mesh(np.array(jax.devices()[:1]), ("parts",))
    integers = jnp.asarray(INTEGERS)

    def own(key, part):
        first = lax.axis_index("parts") * part.shape[-1]
        return released(key, part, num_columns=40, first_column=first)

    spec = PartitionSpec(None, None, "parts")
    on_devices = jax.shard_map(
        own,
        mesh=mesh,
        in_specs=(PartitionSpec(), spec),
        out_specs=PartitionSpec(None, "parts"),
        check_vma=False,
    )
    found = jax.jit(on_devices)(seeded_key(12), integers)
    np.testing.assert_array_equal(found, released(seeded_key(12), integers))


def test_a_traced_ratio_and_scale_give_what_the_same_numbers_give():
    key, integers = seeded_key(13), jnp.asarray(INTEGERS)
    ratio, scale = np.float32(123.456), np.float32(0.7)
    traced = jax.jit(lambda r, s: released(key, integers, ratio=r, scale=s))(ratio, scale)
    number = released(key, integers, ratio=float(ratio), scale=float(scale))
    np.testing.assert_array_equal(traced, number)


@pytest.mark.parametrize("ratio", [math.nan, 0.0, -1.0, math.inf, 2.0**41])
def test_a_ratio_that_makes_no_sense_is_refused_or_gives_no_number(ratio):
    key, integers = seeded_key(14), jnp.asarray(INTEGERS)
    with pytest.raises(InvalidArgumentError, match="ratio must be"):
        released(key, integers, ratio=ratio)
    with pytest.raises(InvalidArgumentError, match="ratio must be"):
        rounded_gaussian(key, ratio=ratio, num_columns=3)
    assert np.isnan(jax.jit(lambda r: released(key, integers, ratio=r))(ratio)).all()
    draw = jax.jit(lambda r: rounded_gaussian(key, ratio=r, num_columns=3))(ratio)
    assert (as_integers(draw) == -(2**63)).all()


def test_slices_beyond_the_draw_and_draws_that_are_too_long_are_refused():
    key = seeded_key(15)
    with pytest.raises(InvalidArgumentError, match="columns must lie within the draw"):
        rounded_gaussian(key, ratio=1.0, num_columns=10, first_column=8, length=3)
    with pytest.raises(InvalidArgumentError, match="num_columns must be less"):
        rounded_gaussian(key, ratio=1.0, num_columns=2**30, length=1)


def test_a_draw_may_be_empty_and_a_ratio_tiny():
    assert released(seeded_key(16), jnp.zeros((1, 2, 0), jnp.int32)).shape == (2, 0)
    for ratio in (1e-3, 1e-200):
        assert (
            as_integers(rounded_gaussian(seeded_key(16), ratio=ratio, num_columns=100)) == 0
        ).all()


def test_programs_with_noise_have_no_callbacks_so_they_can_be_stored_compiled():
    text = jax.jit(lambda key: released(key, INTEGERS)).lower(seeded_key(17)).as_text()
    assert "callback" not in text


def test_the_constants_of_refinement_are_right_to_the_last_digit():
    n = mpmath.mpf(refinement._LOG_TERMS)
    with mpmath.workprec(500):
        expected = {
            0: 0,
            1: 1,
            refinement._LOG_TERMS: 1 / n,
            refinement._LOG_TERMS + 2: mpmath.mpf(16) / 24,
            -3: 2,
            -2: mpmath.log(2),
            -1: mpmath.pi / 4,
        }
        for row, value in expected.items():
            found = 0
            for digit in refinement._CONSTANTS[row].tolist():
                found = (found << refinement._BITS) + digit
            assert found == int(value * 2 ** (refinement._BITS * refinement._FRACTION))
