"""ChaCha20 is the published cipher, its streams are independent, and its normals are normal."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.chacha20 import CHACHA20, _positions, chacha20_block, words_between
from tacit.errors import InvalidArgumentError
from tacit.rng import (
    _normals,
    _universal,
    fresh_key,
    keyed_hash,
    normal_like,
    seeded_key,
)

# RFC 7539: section 2.3.2, then appendix A.1, test vectors 1 to 5 (key, counter, nonce, block).
RFC_VECTORS = [
    (
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        0,
        "000000000000000000000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        1,
        "000000000000000000000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes([0] * 31 + [1]),
        1,
        "000000000000000000000000",
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        bytes([0, 0xFF] + [0] * 30),
        2,
        "000000000000000000000000",
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        0,
        "000000000000000000000002",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def little_endian_words(data):
    return jnp.asarray(np.frombuffer(data, "<u4").astype(np.uint32))


def words(keys):
    return np.asarray(jax.random.key_data(keys))


@pytest.mark.parametrize(("key", "counter", "nonce", "block"), RFC_VECTORS)
def test_blocks_are_those_of_rfc_7539(key, counter, nonce, block):
    result = chacha20_block(
        little_endian_words(key),
        jnp.uint32(counter),
        little_endian_words(bytes.fromhex(nonce)),
    )
    assert np.asarray(result).astype("<u4").tobytes().hex() == block


def operation_block(key, operation, index):
    """The block that the documented construction assigns to an index below 2**32."""
    nonce = jnp.array([0, 0, operation], jnp.uint32)
    return np.asarray(chacha20_block(jax.random.key_data(key), jnp.uint32(index), nonce))


@pytest.mark.parametrize("num_blocks", [1, 3, 128, 129, 300])
def test_bits_are_the_blocks_of_their_own_domain_each_word_once(num_blocks):
    key = seeded_key(5)
    bits = np.asarray(jax.random.bits(key, (16 * num_blocks,)))
    expected = np.concatenate([operation_block(key, 1, i) for i in range(num_blocks)])
    if num_blocks <= 128:
        assert sorted(bits) == sorted(expected)
    else:  # the last group is cut, so only blocks of whole groups are all there
        whole = num_blocks // 128 * 128 * 16
        assert sorted(bits[:whole]) == sorted(expected[:whole])
        assert len(set(bits.tolist())) == len(bits)


def test_split_and_fold_in_take_keys_from_domains_of_their_own():
    key = seeded_key(5)
    assert (words(jax.random.split(key, 2)).ravel() == operation_block(key, 2, 0)).all()
    assert (words(jax.random.fold_in(key, 77)) == operation_block(key, 3, 77)[:8]).all()


def test_block_numbers_beyond_2_to_the_32_carry_into_the_next_word():
    for group in (0, 1, 2**25 - 1, 2**25, 2**25 + 1, 2**32 - 1):
        low, high, zero, operation = np.asarray(_positions(np.uint32(9), jnp.uint32(group), 128))
        numbers = (high.astype(object) << 32) + low.astype(object)
        assert (numbers == 128 * group + np.arange(128)).all()
        assert (zero == 0).all()
        assert (operation == 9).all()


def test_a_child_does_not_depend_on_the_number_of_its_siblings():
    few, many = (
        words(jax.random.split(seeded_key(1), 3)),
        words(jax.random.split(seeded_key(1), 500)),
    )
    assert (few == many[:3]).all()


def test_no_two_derived_keys_and_no_two_words_of_them_collide():
    key = seeded_key(0)
    family = [
        words(key)[None],
        words(jax.random.split(key, 3000)),
        words(jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(3000))),
        np.asarray(jax.random.bits(key, (3000, 8))),
        words(jax.vmap(lambda k: jax.random.fold_in(k, 0))(jax.random.split(key, 3000))),
    ]
    keys = np.concatenate(family)
    assert len(np.unique(keys, axis=0)) == len(keys)
    # 96 000 uniform 32-bit words have 1.07 colliding pairs on average; 12 is beyond 6 sigma.
    derived = np.concatenate(family[1:]).ravel()
    assert len(derived) - len(np.unique(derived)) < 12


def test_streams_of_children_folds_and_the_parent_are_uncorrelated():
    key = seeded_key(2)
    children = jax.random.split(key, 4)
    folds = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(4))
    num = 100_000
    streams = np.stack(
        [np.asarray(jax.random.uniform(k, (num,))) for k in [key, *children, *folds]]
    )
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(num)


def test_flipping_one_bit_of_a_key_flips_half_of_the_output():
    base = words(seeded_key(9))
    num = 64 * 1024
    bits = lambda data: np.asarray(  # noqa: E731
        jax.random.bits(jax.random.wrap_key_data(jnp.asarray(data), impl=CHACHA20), (num // 32,))
    )
    for word, bit in [(0, 0), (3, 17), (7, 31)]:
        flipped = base.copy()
        flipped[word] ^= np.uint32(1 << bit)
        changed = np.bitwise_count(bits(base) ^ bits(flipped)).sum()
        assert abs(changed - num / 2) < 5 * np.sqrt(num) / 2


@pytest.mark.parametrize("bit_width", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (4099,)])
def test_bits_have_the_shape_and_width_that_was_asked(bit_width, shape):
    with jax.enable_x64(True):
        bits = jax.random.bits(seeded_key(3), shape, f"uint{bit_width}")
        assert bits.shape == shape
        assert bits.dtype == f"uint{bit_width}"


@pytest.mark.parametrize("bit_width", [8, 16, 32, 64])
def test_every_bit_of_every_width_is_fair(bit_width):
    num = 40_000
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(seeded_key(4), (num,), f"uint{bit_width}"))
    ones = np.array([(bits >> np.array(i, bits.dtype) & 1).sum() for i in range(bit_width)])
    assert np.abs(ones - num / 2).max() < 5 * np.sqrt(num) / 2


def test_uniforms_are_uniform():
    uniforms = np.asarray(jax.random.uniform(seeded_key(6), (200_000,)))
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-4
    assert (
        stats.kstest(np.asarray(jax.random.normal(seeded_key(7), (200_000,))), "norm").pvalue > 1e-4
    )


def test_neighbouring_values_of_a_stream_are_uncorrelated():
    x = np.asarray(jax.random.uniform(seeded_key(8), (300_000,))) - 0.5
    for lag in (1, 2, 15, 16, 17, 127, 128, 129, 2047, 2048):
        assert abs(np.mean(x[:-lag] * x[lag:]) * 12) < 5 / np.sqrt(len(x) - lag)


DRAWS = {
    "normal": lambda k: jax.random.normal(k, (5, 3)),
    "uniform": lambda k: jax.random.uniform(k, (3000,)),
    "randint": lambda k: jax.random.randint(k, (20,), 0, 1000),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (64,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.zeros((4, 50))),
    "permutation": lambda k: jax.random.permutation(k, 100),
    "choice": lambda k: jax.random.choice(k, 1000, (5,), replace=False),
    "gamma": lambda k: jax.random.gamma(k, 2.0, (6,)),
    "split": lambda k: jax.random.key_data(jax.random.split(k, (2, 3))),
    "fold_in": lambda k: jax.random.key_data(jax.random.fold_in(k, 2**32 - 1)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_agree_eagerly_jitted_and_mapped_and_differ_between_keys(draw):
    keys = jax.random.split(seeded_key(10), 3)
    eager = np.stack([draw(key) for key in keys])
    np.testing.assert_array_equal(eager[0], jax.jit(draw)(keys[0]))
    np.testing.assert_array_equal(eager, jax.jit(jax.vmap(draw))(keys))
    for a, b in itertools.combinations(eager, 2):
        assert (a != b).any()


def test_draws_are_the_same_without_compilation():
    draw = lambda k: jax.random.bits(jax.random.fold_in(jax.random.split(k)[1], 3), (3000,))  # noqa: E731
    compiled = jax.jit(draw)(seeded_key(11))
    with jax.disable_jit():
        np.testing.assert_array_equal(draw(seeded_key(11)), compiled)


def test_a_scan_carries_keys():
    def step(key, _):
        key, sub = jax.random.split(key)
        return key, jax.random.normal(sub)

    _, values = jax.lax.scan(step, seeded_key(12), length=4)
    key, expected = seeded_key(12), []
    for _ in range(4):
        key, sub = jax.random.split(key)
        expected.append(float(jax.random.normal(sub)))
    np.testing.assert_array_equal(values, np.float32(expected))


def test_mapped_folds_agree_with_single_ones_for_batched_keys_and_data():
    keys, data = jax.random.split(seeded_key(13), 3), jnp.array([0, 5, 2**32 - 1], jnp.uint32)
    both = words(jax.vmap(jax.random.fold_in)(keys, data))
    crossed = words(jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, data))
    for i, j in itertools.product(range(3), range(3)):
        single = words(jax.random.fold_in(keys[i], data[j]))
        assert (crossed[i, j] == single).all()
        if i == j:
            assert (both[i] == single).all()


def test_a_seeded_key_holds_its_seed_and_jax_makes_the_same_one():
    seed = int.from_bytes(bytes(range(32)), "little")
    assert words(seeded_key(seed)).astype("<u4").tobytes() == bytes(range(32))
    assert (words(jax.random.key(7, impl=CHACHA20)) == words(seeded_key(7))).all()
    with jax.enable_x64(True):
        big = jax.random.key(2**40 + 3, impl=CHACHA20)
    assert (words(big) == words(seeded_key(2**40 + 3))).all()
    assert (
        words(jax.vmap(lambda s: jax.random.key(s, impl=CHACHA20))(jnp.arange(3)))[:, 0]
        == [0, 1, 2]
    ).all()


@pytest.mark.parametrize("seed", [-1, 2**256, 1.0, True, "1"])
def test_a_seed_that_is_no_whole_number_below_2_to_the_256_is_refused(seed):
    with pytest.raises(InvalidArgumentError, match="seed must be a whole number"):
        seeded_key(seed)


def test_fresh_keys_have_256_fair_bits_and_never_repeat():
    keys = np.stack([words(fresh_key()) for _ in range(400)])
    assert len(np.unique(keys, axis=0)) == 400
    ones = np.unpackbits(keys.view(np.uint8), axis=1).sum(axis=0).astype(int)
    assert np.abs(ones - 200).max() < 6 * 10  # 256 binomials of standard deviation 10


def test_the_rounds_are_a_loop_and_not_unrolled_so_that_compiling_is_quick():
    program = str(jax.make_jaxpr(lambda k: jax.random.bits(k, (4096,)))(seeded_key(0)))
    assert program.count(" = xor") < 20  # unrolled there would be 320


@pytest.mark.parametrize("num_words", [7, 40, 2048, 2049, 10_000])
@pytest.mark.parametrize("make_key", [seeded_key, jax.random.key])
def test_words_between_are_those_of_the_whole_draw(num_words, make_key):
    whole = jax.random.bits(make_key(3), (num_words,), jnp.uint32)
    for start, length in ((0, num_words), (num_words // 3, num_words // 2), (num_words - 1, 1)):
        found = words_between(make_key(3), jnp.asarray(start), length, num_words=num_words)
        np.testing.assert_array_equal(found, whole[start : start + length])


def test_words_that_32_bits_cannot_count_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"num_words must be less than 2\*\*32"):
        words_between(seeded_key(0), jnp.uint32(0), 1, num_words=2**32)


def hash_of(tree, key=None):
    return np.asarray(jax.random.key_data(keyed_hash(seeded_key(1) if key is None else key, tree)))


def flipped(array, bit):
    """The array with one of its bits turned over."""
    data = np.unpackbits(np.frombuffer(np.asarray(array).tobytes(), np.uint8))
    data[bit] ^= 1
    return np.frombuffer(np.packbits(data).tobytes(), array.dtype).reshape(array.shape)


LEAVES = {
    "float32": np.linspace(-1, 1, 999, dtype=np.float32).reshape(3, 333),
    "zeros": np.zeros(70, np.float32),
    "not a number": np.full(7, np.nan, np.float32),
    "bfloat16": np.asarray(jnp.linspace(-1, 1, 131, dtype=jnp.bfloat16)),
    "int32": np.arange(5, dtype=np.int32),
    "uint8": np.arange(67, dtype=np.uint8),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_keyed_hash_follows_every_bit_of_every_leaf(name):
    leaf = LEAVES[name]
    generator = np.random.default_rng(0)
    bits = generator.choice(8 * leaf.nbytes, size=min(200, 8 * leaf.nbytes), replace=False)
    hashed = jax.jit(lambda leaf: jax.random.key_data(keyed_hash(seeded_key(1), (leaf, 1.0))))
    found = {tuple(np.asarray(hashed(each))) for each in (leaf, *(flipped(leaf, b) for b in bits))}
    assert len(found) == len(bits) + 1


def test_a_keyed_hash_follows_every_bit_of_doubles():
    with jax.enable_x64(True):
        leaf = np.linspace(-1, 1, 9)
        found = {tuple(hash_of({"x": flipped(leaf, bit)})) for bit in range(0, 9 * 64, 23)}
        assert len(found) == len(range(0, 9 * 64, 23))


def test_a_keyed_hash_follows_masks_keys_structures_shapes_and_types():
    x = np.zeros(6, np.float32)
    mask = np.ones(9, bool)
    trees = [
        x,
        (x,),
        {"x": x},
        {"y": x},
        (x, None),
        x.reshape(2, 3),
        x.astype(np.int32),
        x[:5],
        mask,
        *(np.arange(9) != i for i in range(9)),
        np.zeros(0, np.float32),
        (),
        x * 1j,
        seeded_key(3),
        seeded_key(4),
    ]
    found = {tuple(hash_of(tree)) for tree in trees}
    assert len(found) == len(trees)
    assert tuple(hash_of(x, key=seeded_key(2))) not in found


def test_a_keyed_hash_is_the_same_eager_compiled_mapped_and_scanned():
    x = jnp.arange(3 * 200, dtype=jnp.float32).reshape(3, 200)
    own = [hash_of(row) for row in x]

    def one(row):
        return jax.random.key_data(keyed_hash(seeded_key(1), row))

    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(x), own)
    np.testing.assert_array_equal(jax.lax.scan(lambda c, row: (c, one(row)), 0, x)[1], own)


def reference_hash(key, words):
    """NH level by level on whole numbers, as in the paper."""
    lengths = [len(words)]
    while lengths[-1] > 1 or len(lengths) == 1:
        lengths.append(-(-lengths[-1] // 64))
    keys = np.asarray(jax.random.bits(key, (len(lengths) - 1, 64, 8, 1), jnp.uint32)).astype(int)
    rows = [list(map(int, words)) for _ in range(8)]
    for level, length in enumerate(lengths[1:]):
        after = []
        for h, row in enumerate(rows):
            full = row + [0] * (64 * length - len(row))
            after.append(
                [
                    sum(
                        ((full[i * length + j] + k) % 2**16)
                        * (((full[i * length + j] >> 16) + (k >> 16)) % 2**16)
                        for i, k in enumerate(keys[level, :, h, 0].tolist())
                    )
                    % 2**32
                    for j in range(length)
                ]
            )
        rows = after
    return [row[0] for row in rows]


@pytest.mark.parametrize("length", [1, 64, 65, 5000])
def test_the_universal_hash_is_nh_as_published(length):
    words = np.random.default_rng(0).integers(0, 2**32, length).astype(np.uint32)
    found = _universal(seeded_key(0), jnp.asarray(words))
    assert found.tolist() == reference_hash(seeded_key(0), words)


def test_words_that_collide_under_one_key_are_as_rare_as_the_theorem_says():
    keys = jax.vmap(lambda i: jax.random.fold_in(seeded_key(0), i))(jnp.arange(20_000))
    one, other = jnp.zeros(2, jnp.uint32), jnp.array([0, 1 << 16], jnp.uint32)
    pairs = [jax.vmap(lambda key, m=m: _universal(key, m))(keys) for m in (one, other)]
    # 160 000 trials at 2^-16 each: 2.4 on average, and at most 12 within six standard deviations.
    assert int(jnp.sum(pairs[0] == pairs[1])) <= 12


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
    result = np.asarray(_normals(jnp.asarray(words)), float)
    np.testing.assert_allclose(result, exact_normals(words), rtol=1e-6, atol=0)


def normals(num, seed=0, std=1.0):
    shape = jax.ShapeDtypeStruct((num,), jnp.float32)
    return np.asarray(jax.jit(lambda k: normal_like(k, shape, std=std))(seeded_key(seed)), float)


def test_moments_are_those_of_a_normal():
    z, num = normals(1_000_000), 1_000_000
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        assert abs(np.mean(z**power) - expected) < 5 * math.sqrt(variance / num)


def test_the_distribution_passes_kolmogorov_smirnov_and_its_tails_have_the_right_counts():
    z = normals(1_000_000, seed=1)
    assert stats.kstest(z, "norm").pvalue > 1e-4
    for edge in (2, 3, 4):
        for count, tail in (
            (np.sum(z > edge), stats.norm.sf(edge)),
            (np.sum(z < -edge), stats.norm.sf(edge)),
        ):
            assert abs(count - 1e6 * tail) < 5 * math.sqrt(1e6 * tail)


def test_values_of_a_leaf_are_independent_of_each_other():
    num = 400_000
    z = normals(num, seed=2)
    # Lags of one, of the generator's groups, and of a pair's members (a quarter of the values).
    for lag in (1, 2, 16, 128, 2048, num // 4, num // 2, 3 * num // 4):
        head, tail = z[:-lag], z[lag:]
        assert abs(np.mean(head * tail)) < 5 / math.sqrt(num - lag)
        assert abs(np.mean((head**2 - 1) * (tail**2 - 1))) < 5 * 2 / math.sqrt(num - lag)


def test_leaves_and_keys_are_independent_of_each_other():
    tree = {"w": jnp.zeros((300, 300)), "b": [jnp.zeros(90_000), jnp.zeros(90_000)]}
    first, second = (normal_like(seeded_key(s), tree, std=1.0) for s in (3, 4))
    streams = np.stack([np.ravel(x) for x in jax.tree.leaves([first, second])])
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(90_000)


def test_normals_have_the_shapes_of_the_tree_and_at_least_single_precision():
    tree = {
        "half": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16),
        "single": jnp.zeros(()),
        "empty": jnp.zeros((0, 4)),
        "float16": jnp.zeros((5,), jnp.float16),
    }
    noise = normal_like(seeded_key(0), tree, std=1.0)
    assert jax.tree.map(jnp.shape, noise) == jax.tree.map(lambda x: x.shape, tree)
    assert {leaf.dtype for leaf in jax.tree.leaves(noise)} == {jnp.dtype("float32")}
    with jax.enable_x64(True):
        assert normal_like(seeded_key(0), jnp.zeros(2, "float64"), std=1.0).dtype == "float64"


def test_an_empty_tree_has_no_normals():
    assert normal_like(seeded_key(0), {"w": jnp.zeros((0, 2))}, std=1.0)["w"].shape == (0, 2)
    assert normal_like(seeded_key(0), {}, std=1.0) == {}


def test_the_standard_deviation_scales_and_may_be_traced():
    shape = jnp.zeros(1000)
    unit = normal_like(seeded_key(5), shape, std=1.0)
    scaled = jax.jit(lambda std: normal_like(seeded_key(5), shape, std=std))(2.5)
    np.testing.assert_allclose(scaled, 2.5 * unit, rtol=1e-6)


@pytest.mark.parametrize("std", [0, 0.0, jnp.float32(0)])
def test_no_standard_deviation_gives_zeros(std):
    assert (normal_like(seeded_key(5), jnp.zeros(10_000), std=std) == 0).all()


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf])
def test_a_standard_deviation_that_makes_no_sense_is_refused(std):
    with pytest.raises(InvalidArgumentError, match="std must be"):
        normal_like(seeded_key(0), jnp.zeros(2), std=std)


def test_integer_leaves_are_refused():
    with pytest.raises(InvalidArgumentError, match="floating leaves; got int32"):
        normal_like(seeded_key(0), jnp.arange(3), std=1.0)


def test_normals_agree_jitted_mapped_and_without_compilation():
    noise = lambda key: normal_like(key, {"w": jnp.zeros((7, 3)), "b": jnp.zeros(2)}, std=1.0)  # noqa: E731
    flat = lambda key: jnp.concatenate([x.ravel() for x in jax.tree.leaves(noise(key))])  # noqa: E731
    keys = jax.random.split(seeded_key(6), 3)
    mapped = jax.jit(jax.vmap(flat))(keys)
    with jax.disable_jit():
        plain = jnp.stack([flat(key) for key in keys])
    # Fused and unfused arithmetic may round differently; the bits behind them are the same.
    np.testing.assert_allclose(mapped, plain, rtol=2e-6)
    np.testing.assert_allclose(mapped[1], jax.jit(flat)(keys[1]), rtol=2e-6)
