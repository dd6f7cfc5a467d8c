"""The native kernel computes the same bits as JAX, on every instruction level."""

import ctypes
import functools
import json
import logging
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import export

from privacy import make_vectors
from tacit import chacha20, native
from tacit.chacha20 import words_between
from tacit.native import build
from tacit.privacy import drawing, noise
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.noise import noisy, rounded_gaussian
from tacit.rng import seeded_key

needs_kernel = pytest.mark.skipif(
    not native.is_loaded(), reason="no native kernel: no compiler, or TACIT_NATIVE=off"
)
NONCE = jnp.arange(3, dtype=jnp.uint32)
LEVELS = ["avx512", "avx2", "sse2", "plain"]


def slow(*parameters):
    """Parameters that `make test` leaves out: each is compiled anew, on every level."""
    return [pytest.param(parameter, marks=pytest.mark.slow) for parameter in parameters]


@pytest.fixture(params=LEVELS)
def level(request):
    """One of the instruction levels, and the best again afterwards."""
    if not native.is_loaded():
        pytest.skip("no native kernel: no compiler, or TACIT_NATIVE=off")
    before = native._library.tacit_level()
    if not native._library.tacit_choose_level(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    native._library.tacit_choose_level(before)


def data(keys):
    return np.asarray(jax.random.key_data(keys))


def test_the_name_says_what_runs(level):
    assert native.name() == f"native ({level})"


@functools.cache
def first_words_in_jax(num_words):
    return np.asarray(
        chacha20._first_words(jax.random.key_data(seeded_key(3)), num_words=num_words)
    )


@pytest.mark.parametrize("num_words", [1, 15, 16, 17, 100, 2047, 2048, 2049, 140_000])
def test_words_are_those_of_jax(level, num_words):
    key = seeded_key(3)
    expected = first_words_in_jax(num_words)
    np.testing.assert_array_equal(jax.random.bits(key, (num_words,), jnp.uint32), expected)
    if num_words > 2048:
        cut = jax.jit(lambda start: words_between(key, start, 1500, num_words=num_words))
        for start in (0, 1, 127, 511):
            np.testing.assert_array_equal(cut(start), expected[start : start + 1500])


@pytest.mark.parametrize("num_keys", [1, 17, *slow(2, 3, 5, 16, 1030)])
def test_what_many_keys_give_at_once_is_what_jax_gives(level, num_keys):
    keys = jax.random.split(seeded_key(4), num_keys)
    counters = jnp.arange(num_keys, dtype=jnp.uint32) * 7919
    functions = {
        "blocks": (
            jax.vmap(lambda k, n: chacha20._one_block(k, jnp.append(n, NONCE), num_words=16)),
            jax.vmap(lambda k, n: chacha20._block(k, jnp.append(n, NONCE), num_words=16)),
        ),
        "children": (
            jax.vmap(lambda k, n: chacha20._children(k, num_keys=3)),
            jax.vmap(lambda k, n: chacha20._split(k, (3,)).reshape(-1)),
        ),
        "bits": (
            jax.vmap(lambda k, n: chacha20._first_words(k, num_words=37)),
            jax.vmap(lambda k, n: chacha20._random_bits(k, 32, (37,))),
        ),
        "words": (
            jax.vmap(lambda k, n: chacha20._words_from(k, n, length=7)),
            jax.vmap(lambda k, n: chacha20._native_words_from(k, n, length=7)),
        ),
    }
    for name, (expected, found) in functions.items():
        arguments = jax.random.key_data(keys), counters
        np.testing.assert_array_equal(
            jax.jit(found)(*arguments), jax.jit(expected)(*arguments), err_msg=name
        )


def test_children_are_those_of_jax_for_any_number(level):
    for num in (1, 2, 3, 257, 2500):
        expected = chacha20._children(jax.random.key_data(seeded_key(5)), num_keys=num)
        found = data(jax.random.split(seeded_key(5), num)).reshape(-1)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num", [1, 2, 110, 3000])
def test_places_of_words_are_those_of_jax(level, num):
    # Few different words, so that there are ties in the high one, and in both.
    words = jax.random.randint(jax.random.key(num), (3, 2, num), 0, 1 + num // 2)
    words = words.astype(jnp.uint32) * np.uint32(2**32 // (1 + num))
    expected = jax.vmap(drawing._shuffled_in_jax)(words)
    np.testing.assert_array_equal(jax.jit(jax.vmap(drawing.shuffled))(words), expected)


@pytest.mark.parametrize(
    ("num_drawn", "num_wanted", "population"),
    [(1, 1, 1), (20, 5, 8), (149, 110, 1000), (149, 110, 150), (9000, 4000, 2**31 - 1)],
)
def test_first_occurrences_are_those_of_jax(level, num_drawn, num_wanted, population):
    drawn = jax.random.randint(jax.random.key(1), (4, num_drawn), 0, population)
    settings = {"num_indices": num_wanted, "population": population}
    expected = jax.vmap(functools.partial(drawing._first_of_each, **settings))(drawn)
    found = jax.jit(jax.vmap(functools.partial(drawing.first_of_each, **settings)))(drawn)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("num_limbs", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (7, 30), (40, 3, 700), *slow((272, 2000))])
def test_rounded_sums_are_those_of_jax(level, num_limbs, shape):
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, *shape)).astype(np.float32)
    weights = (2.0 ** generator.integers(3, 20, (2, shape[0]))).astype(np.float32)
    # What is left out may be anything; halves are rounded to even numbers.
    values[0, 0], weights[0, 0] = np.nan, 0
    values[1, -1], weights[1, -1] = np.resize([0.5, 1.5, -2.5, -0.5, 4194303.5], shape[1:]), 1
    adding = Adding(num_limbs=num_limbs)
    expected = jax.vmap(adding._weighted_in_jax)(values, weights)
    found = jax.jit(jax.vmap(adding.weighted_total))(values, weights)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, expected)


def as_integers(high_and_low):
    high, low = (np.asarray(word).astype(np.int64) for word in high_and_low)
    return (high << 32) | low


def without_kernel(function, *arguments):
    """Compiles and calls a new function, of which no part is native."""
    library, native._library = native._library, None
    try:
        return jax.jit(function)(*arguments)
    finally:
        native._library = library


@functools.cache
def in_jax(seed, *, ratio, num_columns, first_column, length):
    draw = lambda: rounded_gaussian(  # noqa: E731
        seeded_key(seed),
        ratio=ratio,
        num_columns=num_columns,
        first_column=first_column,
        length=length,
    )
    with pytest.MonkeyPatch.context() as patch:  # else what was compiled with the kernel would do
        patch.setattr(noise, "_rounded_gaussian", noise._rounded_gaussian.__wrapped__)
        return as_integers(without_kernel(draw))


@functools.cache
def released_in_jax(*, ratio, scale, num_limbs, length, dtype):
    draw = lambda: noisy(  # noqa: E731
        seeded_key(8),
        limbs(num_limbs, length),
        ratio=ratio,
        scale=scale,
        num_columns=length,
        dtype=dtype,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_noisy", noise._noisy.__wrapped__)
        return np.asarray(without_kernel(draw))


def limbs(num_limbs, length):
    integers = np.random.default_rng(8).integers(-(2**31), 2**31, (num_limbs, 2, length))
    return jnp.asarray(integers.astype(np.int32))


@pytest.mark.parametrize(
    ("num_columns", "first_column", "length"),
    [(1, 0, 1), (5, 1, 3), (512, 0, 512), (513, 100, 413), (3001, 1, 2999), (100_000, 50_001, 700)],
)
@pytest.mark.parametrize("ratio", [7e5, *slow(1e-3, 0.7, 2.0**40)])
def test_integers_are_those_of_jax(level, num_columns, first_column, length, ratio):
    key, place = seeded_key(6), {"num_columns": num_columns, "length": length}
    found = rounded_gaussian(key, ratio=ratio, first_column=first_column, **place)
    expected = in_jax(6, ratio=ratio, first_column=first_column, **place)
    np.testing.assert_array_equal(as_integers(found), expected)


def test_a_draw_over_several_chunks_is_that_of_jax(level):
    num = 70_001
    found = rounded_gaussian(seeded_key(7), ratio=3e4, num_columns=num)
    expected = in_jax(7, ratio=3e4, num_columns=num, first_column=0, length=num)
    np.testing.assert_array_equal(as_integers(found), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_limbs", [1, 2])
@pytest.mark.parametrize("length", [40, *slow(1, 777)])
def test_releases_are_those_of_jax_under_a_traced_schedule(level, dtype, num_limbs, length):
    with jax.enable_x64(dtype == "float64"):
        integers = limbs(num_limbs, length)
        step = jax.jit(
            lambda ratio, scale: noisy(
                seeded_key(8), integers, ratio=ratio, scale=scale, num_columns=length, dtype=dtype
            )
        )
        for ratio, scale in [(1.5, 0.1), (2.0**40, 2.0**-20)]:
            ratio_32, scale_32 = np.float32(ratio), np.float32(scale)
            found = step(ratio_32, scale_32)
            assert found.dtype == dtype
            expected = released_in_jax(
                ratio=float(ratio_32),
                scale=float(scale_32),
                num_limbs=num_limbs,
                length=length,
                dtype=dtype,
            )
            np.testing.assert_array_equal(found, expected)
        assert np.isnan(step(np.float32(-1), np.float32(1))).all()


def decided(words, further, ratio, *, relative_error=0.0):
    """The kernel's integers of given words, and how far each column had to go."""
    words, further = (np.ascontiguousarray(x, np.uint32) for x in (words, further))
    length = words.shape[1]
    high, looks = np.zeros((2, length), np.int32), np.zeros(length, np.int32)
    low = np.zeros((2, length), np.uint32)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (words, further, high, low, looks)]
    native._library.tacit_decide(
        *pointers[:2],
        ctypes.c_int64(length),
        ctypes.c_double(ratio),
        ctypes.c_double(relative_error),
        *pointers[2:],
    )
    return as_integers((high, low)), looks


def test_the_published_vectors_are_reproduced(level):
    vectors = json.loads(make_vectors.PATH.read_text())
    for ratio in {vector["ratio"] for vector in vectors}:
        chosen = [vector for vector in vectors if vector["ratio"] == ratio]
        words, further = (
            np.array([[int(word, 16) for word in v[name]] for v in chosen], np.uint32).T
            for name in ("words", "further_words")
        )
        for relative_error in (0.0, math.inf):
            found, looks = decided(
                words, further, float.fromhex(ratio), relative_error=relative_error
            )
            np.testing.assert_array_equal(found.T, [vector["integers"] for vector in chosen])
            assert relative_error == 0 or (looks == 2).all()


@pytest.mark.parametrize("ratio", [1.0, 7e5, 2.0**39])
def test_words_that_64_bits_cannot_decide_are_refined(level, ratio):
    generator = random.Random(2)
    chosen = [
        (int(ratio * generator.uniform(0.5, 3)), num_bits, above)
        for num_bits in (64, 250)
        for above in (False, True)
        for _ in range(10)
    ]
    columns = [
        make_vectors.at_boundary(generator, ratio, integer, num_bits=num_bits, above=above)
        for integer, num_bits, above in chosen
    ]
    words, further = (np.array(part, np.uint32).T for part in zip(*columns, strict=True))
    found, looks = decided(words, further, ratio)
    assert (looks == 2).all()
    np.testing.assert_array_equal(found[0], [integer + above for integer, _, above in chosen])


EDGES = [0, 1, 2, 2**20 - 1, 2**20, 2**29, 2**31 - 1, 2**31, 2**32 - 2**20, 2**32 - 2, 2**32 - 1]


def edge_and_random_words():
    """Radii near zero, one half and one, angles near an eighth of a turn, and ordinary ones."""
    generator = np.random.default_rng(1)
    columns = [[a, b, *generator.integers(0, 2**32, 2)] for a in EDGES for b in EDGES]
    columns += [[*generator.integers(0, 2**32, 2), a, b] for a in EDGES for b in EDGES]
    columns += generator.integers(0, 2**32, (500, 4)).tolist()
    words = np.array(columns, np.uint32).T
    return words, generator.choice([0, 2**32 - 1, 77], (16, words.shape[1])).astype(np.uint32)


@pytest.mark.parametrize("ratio", [0.3, 7e5, 2.0**40])
def test_integers_are_those_of_mpmath_however_they_are_decided(level, ratio):
    words, further = edge_and_random_words()
    columns = zip(words.T, further.T, strict=True)
    expected = np.array([make_vectors.exact_integers(w, v, ratio) for w, v in columns]).T
    for relative_error in (0.0, math.inf):
        found, _ = decided(words, further, ratio, relative_error=relative_error)
        np.testing.assert_array_equal(found, expected)


def test_the_lowest_cell_is_never_decided_and_the_ends_are_looked_at_twice(level):
    words = np.array([[0, 0, 5, 5], [0, 1, 5, 5], [2**20 - 1, 9, 5, 5], [2**20, 9, 5, 5]]).T
    assert decided(words, np.zeros((16, 4)), 1e-3)[1].tolist() == [2, 1, 1, 0]
    _, looks = decided(
        np.random.default_rng(3).integers(0, 2**32, (4, 200_000)), np.zeros((16, 200_000)), 7e5
    )
    # One column in 2048 is looked at again; at ratio 7e5 one in 3e7 is refined.
    assert abs((looks == 1).sum() - 200_000 / 2048) < 5 * math.sqrt(200_000 / 2048)
    assert not (looks == 2).any()


def test_at_the_largest_ratio_refined_and_decided_columns_stand_side_by_side(level):
    words = np.random.default_rng(4).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    further = np.zeros((16, 1000), np.uint32)
    found, looks = decided(words, further, 2.0**40)
    columns = zip(words.T, further.T, strict=True)
    expected = np.array([make_vectors.exact_integers(w, v, 2.0**40) for w, v in columns]).T
    np.testing.assert_array_equal(found, expected)
    assert 0 < (looks == 2).mean() < 0.2


def test_the_constants_of_refinement_are_right_to_the_last_bit():
    text = (Path(build.__file__).parent / "refinement.h").read_text()
    with mpmath.workprec(600):
        for name, value in {"kLog2": mpmath.log(2), "kQuarterPi": mpmath.pi / 4}.items():
            limbs = re.search(name + r"\[kFraction\] = \{(.*?)\}", text, re.DOTALL)[1]
            found = sum(int(x, 16) << 64 * i for i, x in enumerate(limbs.split(",")))
            assert found == int(mpmath.floor(value * mpmath.mpf(2) ** 384))


@needs_kernel
@pytest.mark.parametrize("is_busy", [0, 1])
def test_work_is_done_once_even_if_the_pool_has_no_thread_to_spare(is_busy):
    for num_chunks in (0, 1, 2, 7, 1000):
        assert native._library.tacit_shares_work(is_busy, ctypes.c_int64(num_chunks))


@needs_kernel
def test_many_long_draws_at_once_end():
    # Their calls occupy all threads of the pool, and each asks the pool for help.
    num = 40_000
    keys = jax.random.split(seeded_key(9), 6)
    program = jax.jit(lambda keys: [rounded_gaussian(k, ratio=9.0, num_columns=num) for k in keys])
    mapped = jax.jit(jax.vmap(lambda k: rounded_gaussian(k, ratio=9.0, num_columns=num)))(keys)
    for i, one in enumerate(program(keys)):
        np.testing.assert_array_equal(as_integers(one), as_integers(mapped)[i])


@needs_kernel
def test_a_program_for_another_platform_has_no_call_of_the_kernel():
    draw = jax.jit(
        lambda: (
            rounded_gaussian(seeded_key(0), ratio=2.0, num_columns=9),
            jax.random.bits(jax.random.fold_in(seeded_key(0), 1), (9,)),
        )
    )
    assert "custom_call @tacit_integers" in draw.lower().as_text()
    exported = str(export.export(draw, platforms=["cuda"])().mlir_module())
    assert "custom_call @tacit" not in exported


@needs_kernel
def test_a_library_of_other_sources_is_not_loaded(monkeypatch, caplog):
    monkeypatch.setattr(native, "build_name", lambda version: "of other sources")
    with caplog.at_level(logging.WARNING):
        assert native._load() is None
    assert "it was built from other sources" in caplog.text


def run(*, native_level, cache):
    environment = dict(os.environ, TACIT_NATIVE=native_level, JAX_COMPILATION_CACHE_DIR=str(cache))
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    program = Path(__file__).with_name("seeded_fit.py")
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().split(",")


@needs_kernel
def test_a_seeded_fit_is_the_same_without_the_kernel(tmp_path):
    with_kernel = run(native_level="", cache=tmp_path / "with")
    without = run(native_level="off", cache=tmp_path / "without")
    assert with_kernel[0].startswith("native")
    assert without[0] == "JAX"
    assert with_kernel[1] == without[1]


@needs_kernel
def test_a_level_that_does_not_exist_is_refused():
    environment = dict(os.environ, TACIT_NATIVE="avx9000")
    done = subprocess.run(
        [sys.executable, "-c", "import tacit.native"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TACIT_NATIVE must be off or an instruction level of this machine" in done.stderr


@needs_kernel
def test_programs_with_the_kernel_are_stored_compiled(tmp_path):
    program = (
        "import jax; from tacit.rng import seeded_key;"
        "from tacit.privacy.noise import rounded_gaussian;"
        "many = jax.jit(lambda key: rounded_gaussian(key, ratio=2.0, num_columns=9));"
        "assert 'custom_call @tacit' in many.lower(seeded_key(0)).as_text();"
        "print(many(seeded_key(0)))"
    )
    environment = dict(os.environ, JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append((done.stdout, sorted(p.name for p in tmp_path.glob("*-cache"))))
    assert outputs[0] == outputs[1]
    assert any("lambda" in name for name in outputs[0][1])
