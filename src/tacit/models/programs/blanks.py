"""Blanks: made-up records that stand in for private ones wherever their values do not matter."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tacit.typing import Array, Key

__all__ = ["blank_records", "made_up_records", "row_shapes"]

_MOST_COMBINATIONS = 64


def row_shapes(records: Sequence[Any], num_rows: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of ``records`` with another number of rows; no value is read."""
    return [jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in records]


def blank_records(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Returns records of zeros."""
    return [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]


def made_up_records(key: Key, shapes: Sequence[jax.ShapeDtypeStruct]) -> Iterator[list[Array]]:
    """Yields random tables of all sorts of values, in search of one that a program can have.

    First the arrays have values of one sort, then of different sorts.
    """
    choices = [_sorts(own, shape) for own, shape in zip(_keys(key, shapes), shapes, strict=True)]
    longest = max(map(len, choices))
    for sort in range(longest):
        yield [values[min(sort, len(values) - 1)] for values in choices]
    mixed = itertools.product(*choices)
    for values in itertools.islice(mixed, _MOST_COMBINATIONS):
        yield list(values)


def _keys(key: Key, shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Key]:
    return list(jax.random.split(key, len(shapes)))


def _sorts(key: Key, shape: jax.ShapeDtypeStruct) -> list[Array]:
    """Several arrays of one shape: of any sign, of fractions, of counts, of proportions."""
    if jnp.issubdtype(shape.dtype, jnp.bool_):
        return [jax.random.bernoulli(key, shape=shape.shape)]
    uniform = jax.random.uniform(key, shape.shape)
    counts = (uniform * 2).astype(shape.dtype)
    if not jnp.issubdtype(shape.dtype, jnp.floating):
        return [counts, jnp.ones_like(counts), jnp.zeros_like(counts)]
    normal = jax.random.normal(key, shape.shape, jnp.float32)
    sorts = [normal, uniform, counts, 1.0 + counts]
    if len(shape.shape) > 1:
        sorts.append(jax.nn.softmax(normal))
    return [sort.astype(shape.dtype) for sort in sorts]
