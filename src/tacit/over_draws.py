"""Sums over the draws of a posterior, for each input, of which a few are in memory at a time."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.rng import seeded_key
from tacit.samplers import Sampler
from tacit.state_file import state_file_of
from tacit.typing import Array, Input, Key, Tree

__all__ = ["Chosen", "OfDraw", "mean_over_draws", "over_draws", "states_at", "sum_over_draws"]

_INPUTS, _DRAWS = "inputs", "draws"
"""The axes of a mesh."""

_MOST_BYTES = 2**25
"""Of states that are in memory at once, where they are summed over."""

_MOST_AT_ONCE = 2**30
"""Of states on disk, where all of them are looked at again and again."""


OfDraw: TypeAlias = Callable[..., Tree]
"""Of one draw's parameters, ONE input, its key and settings; the same object compiles once."""


class Chosen(NamedTuple):
    """States of a posterior, of which some are taken.

    Attributes:
      kept: as a posterior has them: ``(num_chains, num_kept, ...)``, in memory or on disk.
      sampler: turns a state into parameters.
      indices: which, counted so that chains take turns.
    """

    kept: Tree
    sampler: Sampler
    indices: NDArray[np.int64]

    def chunks(self, *, multiple: int = 1) -> Iterator[tuple[Array, Array, Tree]]:
        """Yields numbers of draws, which of them count, and their states, all of one shape.

        Args:
          multiple: how many draws are taken together at least.
        """
        most = max(1, _MOST_BYTES // max(1, multiple * self._state_bytes))
        num_groups = -(-len(self.indices) // multiple)
        num_chunks = -(-num_groups // most)
        length = -(-num_groups // num_chunks) * multiple
        for first in range(0, len(self.indices), length):
            numbers = np.arange(first, first + length)
            # Filled up, so that one compilation serves all and devices have as many each.
            rows = self.indices[numbers % len(self.indices)]
            yield (
                jnp.asarray(numbers),
                jnp.asarray(numbers < len(self.indices)),
                jax.tree.map(jnp.asarray, states_at(self.kept, rows)),
            )

    def at_once(self) -> Tree:
        """Returns all states on one axis; raises where they are on disk and too many for that."""
        most = _MOST_AT_ONCE // max(1, self._state_bytes)
        if state_file_of(self.kept) is not None and len(self.indices) > most:
            raise InvalidArgumentError(
                f"num_draws must be at most {most} here, where all draws are held in memory; got"
                f" {len(self.indices)} of {self._state_bytes / 2**20:.3g} MB each, which are on"
                " disk."
            )
        return states_at(self.kept, self.indices)

    @property
    def _state_bytes(self) -> int:
        leaves = jax.tree.leaves(self.kept)
        return sum(leaf.nbytes // (leaf.shape[0] * leaf.shape[1]) for leaf in leaves)


def states_at(kept: Tree, indices: NDArray[np.int64]) -> Tree:
    """Returns states on one leading axis.

    Args:
      kept: leaves are ``(num_chains, num_kept, ...)``.
      indices: which, counted so that chains take turns and a prefix has them all.
    """
    num_chains = jax.tree.leaves(kept)[0].shape[0]
    at = (indices % num_chains, indices // num_chains)
    return jax.tree.map(lambda leaf: leaf[at], kept)


def over_draws(
    function: OfDraw,
    merge: Callable[[Tree, Tree], Tree],
    chosen: Chosen,
    inputs: Tree,
    *settings: Array | float,
    seed: int,
    batch_size: int,
    numbered_from: int = 0,
    mesh: Mesh | None = None,
) -> Tree:
    """Returns what all draws together give each input.

    Memory is bounded by ``batch_size`` inputs times one draw, and 32 MB of states or one, however
    many draws and inputs there are. Each state is read once.

    Args:
      function: of a draw and an input. It is given the same keys whatever it computes, so that all
        that is said of a posterior with one seed is said of the same draws and masks.
      merge: of what two sets of draws give ONE input; zeros are none.
      chosen: the draws.
      inputs: every leaf has one row for each.
      settings: what else the function is given.
      seed: of masks and samplers; nothing private hangs on it.
      batch_size: how many inputs are looked at together.
      numbered_from: the number of the first input; inputs of different numbers have other masks.
      mesh: devices of this process that share inputs, draws or both.
    """
    _check.positive_integer(batch_size=batch_size)
    shape = {} if mesh is None else dict(mesh.shape)
    if not set(shape) <= {_INPUTS, _DRAWS}:
        raise InvalidArgumentError(
            f'mesh must have axes "{_INPUTS}" or "{_DRAWS}" or both; got {tuple(shape)}.'
        )
    num_inputs = _tree.num_records(inputs)
    if num_inputs == 0:
        raise InvalidArgumentError("x must have at least one row; got none.")
    share = shape.get(_INPUTS, 1)
    batch_size = -(-min(batch_size, num_inputs) // share) * share
    # The last batch reaches back, so that all have one shape and compile once.
    starts = range(0, num_inputs, batch_size)
    firsts = [max(0, min(start, num_inputs - batch_size)) for start in starts]
    own = tuple(jnp.asarray(setting) for setting in settings)
    key, (nothing, add) = seeded_key(seed), _compiled(function, merge, chosen.sampler, mesh)
    seen: list[Tree] = []
    for draws in chosen.chunks(multiple=shape.get(_DRAWS, 1)):
        # A chunk is read while the device works on the one before; more would pile up.
        jax.block_until_ready(seen)
        for number, first in enumerate(firsts):
            rows = jnp.arange(first, first + batch_size) % num_inputs
            given = (key, draws, _tree.take(inputs, rows), numbered_from + rows, own)
            if number == len(seen):
                seen.append(nothing(*given))
            seen[number] = add(seen[number], *given)
    parts = [
        jax.tree.map(lambda leaf, at=slice(start - first, num_inputs - first): leaf[at], part)
        for start, first, part in zip(starts, firsts, seen, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def sum_over_draws(
    function: OfDraw,
    chosen: Chosen,
    inputs: Tree,
    *settings: Array | float,
    seed: int,
    batch_size: int,
    numbered_from: int = 0,
) -> Tree:
    """Returns the sum over all draws, for each input; arguments are those of `over_draws`."""
    return over_draws(
        function,
        _sum,
        chosen,
        inputs,
        *settings,
        seed=seed,
        batch_size=batch_size,
        numbered_from=numbered_from,
    )


def mean_over_draws(
    function: OfDraw,
    chosen: Chosen,
    inputs: Tree,
    *settings: Array | float,
    seed: int,
    batch_size: int,
) -> Tree:
    """Returns the mean over all draws, for each input; arguments are those of `over_draws`."""
    total = sum_over_draws(function, chosen, inputs, *settings, seed=seed, batch_size=batch_size)
    return jax.tree.map(lambda leaf: leaf / len(chosen.indices), total)


def _sum(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jnp.add, one, other)


@functools.lru_cache(maxsize=64)
def _compiled(
    function: OfDraw,
    merge: Callable[[Tree, Tree], Tree],
    sampler: Sampler,
    mesh: Mesh | None,
) -> tuple[Callable[..., Tree], Callable[..., Tree]]:
    """Returns what makes zeros, and what adds a chunk of draws to what was seen of a batch."""
    both = jax.vmap(merge)

    def of_draw(key: Key, draw: Tree, x: Input, index: Array, settings: tuple[Array, ...]) -> Tree:
        number, _, state = draw
        draw_key, input_key = jax.random.split(jax.random.fold_in(key, number))
        params = sampler.draw(draw_key, state)
        keys = jax.vmap(lambda i: jax.random.fold_in(input_key, i))(index)
        return jax.vmap(lambda row, own: function(params, row, own, *settings))(x, keys)

    def nothing(key: Key, draws: Tree, *given: Tree) -> Tree:
        first = jax.tree.map(lambda leaf: leaf[0], draws)
        shapes = jax.eval_shape(of_draw, key, first, *given)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(seen: Tree, key: Key, draws: Tree, *given: Tree) -> Tree:
        def add_draw(seen: Tree, draw: Tree) -> tuple[Tree, None]:
            _, counts, _ = draw
            new = both(seen, of_draw(key, draw, *given))
            return jax.tree.map(lambda new, old: jnp.where(counts, new, old), new, seen), None

        if mesh is None or _DRAWS not in mesh.shape:
            return lax.scan(add_draw, seen, draws)[0]
        own = lax.scan(add_draw, jax.tree.map(jnp.zeros_like, seen), draws)[0]
        of_all = lax.all_gather(own, _DRAWS)
        return lax.scan(lambda one, other: (both(one, other), None), seen, of_all)[0]

    if mesh is None:
        return jax.jit(nothing), jax.jit(add)
    mesh = Mesh(mesh.devices, mesh.axis_names)  # without axes whose cuts have to be spelt out
    inputs, of_draws = (P(axis) if axis in mesh.shape else P() for axis in (_INPUTS, _DRAWS))
    specs = (inputs, P(), of_draws, inputs, inputs, P())
    cut = jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=inputs, check_vma=False)
    return jax.jit(nothing), jax.jit(cut)
