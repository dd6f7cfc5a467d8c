"""Blanks: made-up records that stand in for private ones wherever their values do not matter."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.typing import Array

__all__ = ["blank_records", "made_up_records", "row_shapes"]

_MOST_COMBINATIONS = 64


def row_shapes(records: Sequence[Any], num_rows: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of ``records`` with another number of rows; no value is read."""
    return [jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in records]


def blank_records(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Returns records of ones, which more programs can have than zeros: scales, counts, labels."""
    return [jnp.ones(shape.shape, shape.dtype) for shape in shapes]


def made_up_records(shapes: Sequence[jax.ShapeDtypeStruct]) -> Iterator[list[Array]]:
    """Yields random tables of all sorts of values, in search of one that a program can have.

    First the arrays have values of one sort, then of different sorts.
    """
    # NumPy draws them: hundreds of little arrays would each be compiled for.
    random = np.random.default_rng(0)
    choices = [_sorts(random, shape) for shape in shapes]
    for sort in range(max(map(len, choices))):
        yield [values[min(sort, len(values) - 1)] for values in choices]
    for values in itertools.islice(itertools.product(*choices), _MOST_COMBINATIONS):
        yield list(values)


def _sorts(random: np.random.Generator, shape: jax.ShapeDtypeStruct) -> list[Array]:
    """Several arrays of one shape: of any sign, of fractions, of counts, of proportions."""
    uniform = random.uniform(size=shape.shape)
    counts = np.floor(2 * uniform)
    if jnp.issubdtype(shape.dtype, jnp.floating):
        normal = random.normal(size=shape.shape)
        sorts = [normal, uniform, counts, 1 + counts]
        if len(shape.shape) > 1:
            sorts.append(uniform / np.sum(uniform, axis=-1, keepdims=True))
    else:
        sorts = [counts, np.ones_like(counts), np.zeros_like(counts)]
    return [jnp.asarray(sort, shape.dtype) for sort in sorts]
