"""Neighbouring batches made by an adversary, and how far the engine's integers move between them.

Every loss here is linear in its parameters, with both factors of the gradient in the record: an
adversary chooses operands and cotangents freely. The integers of two batches that differ in one
record are compared exactly, the counters of norms among them.

By hand, for as many pairs as you like (prints the worst ratio of each case):

    python -m tests.privacy.neighbours --pairs 100000
"""

import argparse
import contextlib
import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit.privacy.clipping import Flat, Normalised, PerLayer
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.gradient import gradient_summation_of, summation_of
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.rng import seeded_key

__all__ = ["CASES", "SAMPLINGS", "Case", "one_of", "worst_ratio_of_releases", "worst_ratios"]

DRAW = jnp.asarray(np.random.default_rng(7).normal(size=(12, 5)), jnp.float32)


def dense(w, r, key):
    return jnp.sum((r["x"][0] @ w["kernel"] + w["bias"]) * r["y"][0])


def weighted(w, r, key):
    weights = w["mean"] + jax.nn.softplus(w["rho"]) * DRAW
    return jnp.sum((r["x"][0] @ weights) * r["y"][0])


def positions(w, r, key):
    return jnp.sum((r["x"] @ w["kernel"]) * r["y"])


def two_functions(w, r, key):
    upper = r["x"][0] @ w["kernel"]
    return jnp.sum(upper * r["y"][0] + (r["x"][1] @ jnp.abs(w["kernel"])) * r["y"][1])


def look_up(w, r, key):
    return jnp.sum(w["table"][r["rows"]] * r["y"])


def one_row(w, r, key):
    return jnp.sum(w["table"][r["rows"][0]] * r["y"][0])


def convolution(w, r, key):
    image = r["x"].reshape(1, 8, -1, 1)
    out = lax.conv_general_dilated(
        image, w["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.sum(out[0, :2, 0, :] * r["y"][:2, :3]) + jnp.sum(out[0, 1:, 1, :] * r["y"][0, 0])


def product_of_parameters(w, r, key):
    return jnp.sum((r["x"][0] @ (w["left"] @ w["right"])) * r["y"][0])


def recurrence(w, r, key):
    def step(carry, inputs):
        x, y = inputs
        return carry + jnp.sum((x @ w["kernel"]) * y), None

    return lax.scan(step, jnp.zeros(()), (r["x"], r["y"]))[0]


def stacked(w, r, key):
    def step(carry, inputs):
        kernel, x, y = inputs
        return carry + jnp.sum((x @ kernel) * y), None

    return lax.scan(step, jnp.zeros(()), (w["layers"], r["x"], r["y"]))[0]


def several_layers(w, r, key):
    return sum(jnp.sum((r["x"][t] @ w[name]["kernel"]) * r["y"][t]) for t, name in enumerate("abc"))


def vector_query(r, key):
    return {"first": r["x"][0], "second": r["y"][0]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loss, how its gradients are clipped, and the shape of its records."""

    loss: Any
    params: Any = field(default_factory=dict)
    num_positions: int = 1
    num_inputs: int = 12
    num_outputs: int = 5
    num_records: int = 40
    clipping: Any = field(default_factory=Flat)
    is_query: bool = False
    chunk_size: int | None = None
    dtype: Any = np.float32

    def precision(self):
        """A context in which arrays of the case's dtype exist; parameters and records have it."""
        return jax.enable_x64(True) if self.dtype == np.float64 else contextlib.nullcontext()

    @property
    def own_params(self):
        """The parameters in the case's dtype, in its context; low precision stays as it is."""
        if self.dtype == np.float32:
            return self.params
        return jax.tree.map(lambda leaf: np.asarray(leaf, self.dtype), self.params)


def _ones(*shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), dtype)


_KERNEL = {"kernel": _ones(12, 5), "bias": _ones(5)}
_WIDE = {"kernel": _ones(600, 40)}
_LAYERS = {name: {"kernel": _ones(12, 5)} for name in "abc"}

CASES = {
    "dense": Case(loss=dense, params=_KERNEL, num_records=300),
    "dense, one block": Case(loss=dense, params=_KERNEL, num_records=288),
    "dense, normalised": Case(loss=dense, params=_KERNEL, clipping=Normalised(floor=1e-6)),
    "dense, in chunks": Case(loss=dense, params=_KERNEL, chunk_size=16),
    "weighted": Case(
        loss=weighted, params={"mean": _ones(12, 5), "rho": _ones(12, 5)}, num_records=260
    ),
    "Gram": Case(
        loss=positions,
        params=_WIDE,
        num_positions=2,
        num_inputs=600,
        num_outputs=40,
        num_records=130,
    ),
    "Gram, more positions": Case(
        loss=positions, params=_WIDE, num_positions=7, num_inputs=600, num_outputs=40
    ),
    "joint": Case(loss=two_functions, params={"kernel": _ones(12, 5)}, num_positions=2),
    "look-up": Case(loss=look_up, params={"table": _ones(6, 5)}, num_positions=4),
    "one row": Case(loss=one_row, params={"table": _ones(6, 5)}),
    "formed": Case(loss=positions, params={"kernel": _ones(12, 5)}, num_positions=30),
    "convolution": Case(loss=convolution, params={"kernel": _ones(3, 2, 1, 3)}, num_positions=2),
    "pulled back": Case(
        loss=product_of_parameters, params={"left": _ones(12, 3), "right": _ones(3, 5)}
    ),
    "recurrence": Case(
        loss=recurrence, params=_WIDE, num_positions=3, num_inputs=600, num_outputs=40
    ),
    "stacked": Case(loss=stacked, params={"layers": _ones(3, 12, 5)}, num_positions=3),
    "per layer": Case(
        loss=several_layers, params=_LAYERS, num_positions=3, clipping=PerLayer(shares={"a": 2.0})
    ),
    "query": Case(loss=vector_query, is_query=True),
    "low precision": Case(
        loss=dense, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _KERNEL)
    ),
    "double precision": Case(loss=dense, params=_KERNEL, dtype=np.float64),
    "double precision, positions": Case(
        loss=positions,
        params=_WIDE,
        num_positions=2,
        num_inputs=600,
        num_outputs=40,
        dtype=np.float64,
    ),
}


def _numbers(generator, shape, kind):  # noqa: PLR0911
    """Numbers that are hard on sums: of all sizes, of few bits, alike, or not numbers."""
    normal = generator.normal(size=shape)
    match kind:
        case "normal":
            return normal
        case "sizes":
            return normal * 10.0 ** generator.uniform(-12, 12, size=shape)
        case "powers":
            return np.sign(normal) * 2.0 ** generator.integers(-30, 30, size=shape)
        case "signs":
            return np.sign(normal)
        case "alike":
            return np.full(shape, generator.normal())
        case "spike":
            return (
                np.where(np.arange(shape[-1]) == generator.integers(shape[-1]), 1.0, 0.0)
                + 0 * normal
            )
        case "tiny":
            return normal * 10.0 ** generator.uniform(-44, -30, size=shape)
        case "huge":
            return normal * 10.0 ** generator.uniform(15, 38)
        case "opposed":
            return normal * 10.0 ** (generator.choice([-1, 1]) * generator.uniform(0, 30))
        case "bad":
            return np.where(
                generator.random(shape) < 0.2, generator.choice([np.nan, np.inf]), normal
            )
    raise AssertionError(kind)


_KINDS = ("normal", "sizes", "powers", "signs", "alike", "spike", "tiny", "huge", "opposed", "bad")


def _record(generator, case):
    x = _numbers(generator, (case.num_positions, case.num_inputs), generator.choice(_KINDS))
    y = _numbers(generator, (case.num_positions, case.num_outputs), generator.choice(_KINDS))
    if generator.random() < 0.4:  # positions that nearly cancel
        nearly = 1 + 10.0 ** generator.uniform(-8, -1) * generator.choice([-1, 1])
        for t in range(1, case.num_positions):
            x[t] = x[0] * (nearly if t % 2 else 1.0)
            y[t] = -y[0] if t % 2 else y[0]
    if generator.random() < 0.3:  # just at the clip norm, where nothing is scaled
        size = np.sqrt(np.sum(x[0] ** 2) * np.sum(y[0] ** 2))
        if np.isfinite(size) and size > 0:
            x /= size
    return {
        "x": x,
        "y": y,
        "rows": generator.integers(-1, 8, size=case.num_positions).astype(np.int32),
    }


def _batches(generator, case, num_pairs):
    """Returns batches, which record changes in each, and what it is replaced by."""
    batches = []
    for _ in range(num_pairs):
        rows = [_record(generator, case) for _ in range(generator.choice([2, 5, case.num_records]))]
        order = generator.integers(len(rows), size=case.num_records)  # duplicates
        if generator.random() < 0.5:
            order = np.sort(order)
        batches.append([rows[i] for i in order])
    with np.errstate(over="ignore"):
        stack = jax.tree.map(lambda *leaves: np.stack(leaves), *[
            jax.tree.map(lambda *leaves: np.stack(leaves), *batch) for batch in batches
        ])  # fmt: skip
        others = [_record(generator, case) for _ in range(num_pairs)]
        other = jax.tree.map(lambda *leaves: np.stack(leaves), *others)
        as_floats = functools.partial(
            jax.tree.map, lambda x: x if x.dtype == np.int32 else x.astype(case.dtype)
        )
        places = generator.integers(case.num_records, size=num_pairs).astype(np.int32)
        return as_floats(stack), places, as_floats(other)


@functools.cache
def _compiled(name):
    """Returns the lattice of a case, and its integers for the neighbours of many batches."""
    case = CASES[name]
    key = seeded_key(0)
    one = _record(np.random.default_rng(0), case)
    record = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, np.int32 if x.dtype == np.int32 else case.dtype),
        one,
    )
    if case.is_query:
        summation = summation_of(case.loss, record, key)
    else:
        summation = gradient_summation_of(case.loss, case.own_params, record, key)
    summation = summation.counting(case.clipping)
    lattice = summation.lattice
    adding = Adding(units=2.0**lattice.exponent, num_limbs=1, heights=summation.heights)
    keys = jax.random.split(key, case.num_records)

    def integers(batch, mask):
        total = summation.clipped_sum(
            batch,
            keys,
            mask,
            clipping=case.clipping,
            clip_norm=lattice.share,
            chunk_size=case.chunk_size,
            adding=adding,
        )
        return summation.in_one(total, adding)[0]

    def neighbours(arguments):
        batch, place, other, mask = arguments
        mask = mask.at[place].set(True)
        zeroed = jax.tree.map(lambda x: x.at[place].set(0), batch)
        replaced = jax.tree.map(lambda x, o: x.at[place].set(o), batch, other)
        # One program for all of them, as in a fit: copies of it may add up in other orders.
        batches = jax.tree.map(lambda *x: jnp.stack(x), batch, batch, zeroed, replaced)
        masks = jnp.stack([mask, mask.at[place].set(False), mask, mask])
        return lax.map(lambda one: integers(*one), (batches, masks))

    return lattice, jax.jit(lambda *arguments: lax.map(neighbours, arguments))


def worst_ratios(name, *, num_pairs, seed):
    """Returns the largest move over the promised one: not drawn, zeroed, replaced."""
    generator = np.random.default_rng(seed)
    case = CASES[name]
    batches, places, others = _batches(generator, case, num_pairs)
    masks = generator.random((num_pairs, case.num_records)) < generator.choice([0.5, 0.9, 1.0])
    with case.precision():
        lattice, neighbours = _compiled(name)
        found = np.asarray(neighbours(batches, places, others, masks), np.int64)
    moves = np.sqrt(np.sum((found[:, 1:] - found[:, :1]).astype(np.float64) ** 2, axis=2))
    # Without a record is without it, whether it was not drawn or is empty.
    assert (found[:, 1] == found[:, 2]).all()
    return (moves / 2.0**lattice.exponent / [1, 1, 2]).max(axis=0)


SAMPLINGS = {
    # Rates are powers of two, so that dividing by them is exact.
    "Poisson": lambda n: PoissonBatch(num_records=n, batch_size=n / 2, max_batch_size=n),
    "full": lambda n: FullBatch(num_records=n),
    "fixed": lambda n: FixedBatch(num_records=n, batch_size=n // 2),
}


def one_of(name):
    """Names a way to draw for a case: compiling every case with all of them takes minutes."""
    return list(SAMPLINGS)[list(CASES).index(name) % len(SAMPLINGS)]


def worst_ratio_of_releases(name, *, draws, as_table, num_pairs, seed):
    """Returns the largest move of whole releases, with noise, over the promised one.

    The releases have one key, and so the same batch and the same noise; of a sum this short
    single precision holds every integer. So their difference is that of the integers.

    Args:
      name: of the case.
      draws: names of `SAMPLINGS`.
      as_table: puts a tree of records where a table can be.
      num_pairs: of tables, for each way to draw a batch.
      seed: of the adversary.
    """
    generator, case = np.random.default_rng(seed), CASES[name]
    worst = 0.0
    for draw in draws:
        release = GaussianSum(
            sampling=SAMPLINGS[draw](case.num_records),
            clip_norm=1.0,
            noise_multiplier=2.0**-12,
            clipping=case.clipping,
            chunk_size=case.chunk_size,
        )

        def released(table, release=release):
            key = seeded_key(seed)
            if case.is_query:
                found = release.counted(key, case.loss, table)
            else:
                found = release.counted_gradient(key, case.loss, case.own_params, table)
            # In clip norms, as the engine had them.
            most = 2.0**-12 / release.sampling.inclusion_rate / jnp.sqrt(found.variances)
            return found.estimate, found.shares * most

        batches, places, others = _batches(generator, case, num_pairs)
        with case.precision():
            run = jax.jit(released)
            for i, place in enumerate(places):
                own = jax.tree.map(lambda x, i=i: x[i], batches)
                replacements = (jax.tree.map(np.zeros_like, others), others)
                changed = [_replaced(own, place, other, i) for other in replacements]
                first, *found = (
                    np.concatenate(
                        [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(run(table))]
                    )
                    for table in map(as_table, [own, *changed])
                )
                moves = [np.linalg.norm(first - other) for other in found]
                rate = release.sampling.inclusion_rate
                worst = max(worst, moves[0] * rate, moves[1] * rate / 2)
    return worst


def _replaced(batch, place, other, i):
    def replaced(rows, others):
        changed = rows.copy()
        changed[place] = others[i]
        return changed

    return jax.tree.map(replaced, batch, other)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000, help="of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    for name in arguments.only:
        worst = np.zeros(3)
        for part in range(-(-arguments.pairs // 200)):
            seed = [arguments.seed, part]
            worst = np.maximum(worst, worst_ratios(name, num_pairs=200, seed=seed))
        print(
            f"{name:24} not drawn {worst[0]:.6f}  zeroed {worst[1]:.6f}  replaced {worst[2]:.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
