"""Running a function on all devices that share a table, in step."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tacit.tables.mesh import PARAMETERS
from tacit.typing import Array, Tree

__all__ = ["is_spread", "on_table", "over_shards", "shared_among"]


class Spread(Protocol):
    """A table that the devices of a mesh share."""

    @property
    def mesh(self) -> Mesh | None:
        """The devices; None where one works alone."""
        ...

    @property
    def specs(self) -> Tree:
        """How its leaves are cut among them."""
        ...

    def shard(self) -> Any:
        """Returns the table as one of them sees it."""
        ...


def is_spread(table: object) -> bool:
    """Whether several devices share a table, and this is seen from outside of `over_shards`."""
    return getattr(table, "mesh", None) is not None and hasattr(table, "shard")


def over_shards(function: Callable[..., Tree], table: Spread, *arguments: Tree) -> Tree:
    """Runs ``function(shard, *arguments)`` on every device of a table's mesh, in step.

    Arguments and results are alike on all of them: what a shard knows of its records leaves it by
    sums over shards only (`Scattered`).
    """
    assert table.mesh is not None

    def on_device(table: Spread, *arguments: Tree) -> Tree:
        return function(table.shard(), *arguments)

    # Varying axes are not tracked: the clipping engine tries losses out of the map's context, too.
    return jax.shard_map(
        on_device,
        mesh=table.mesh,
        in_specs=(table.specs, *(P() for _ in arguments)),
        out_specs=P(),
        axis_names=set(table.mesh.axis_names) - {PARAMETERS},
        check_vma=False,
    )(table, *arguments)


def on_table(function: Callable[..., Tree], table: Any, *arguments: Tree) -> Tree:
    """Runs ``function(table, *arguments)``, on every shard of it where devices share it."""
    if is_spread(table):
        return over_shards(function, table, *arguments)
    return function(table, *arguments)


def shared_among(axis: str, function: Callable[..., Tree], *trees: Tree) -> Tree:
    """Runs a function on this device's part of the leading axis, and gathers all devices' results.

    To be called inside of `over_shards`. Each device of the axis takes an equal run of the leading
    axis of all trees, which must be alike on them; so are the results.

    Args:
      axis: of the mesh.
      function: of the parts; its results have the same leading axis.
      *trees: of arrays.
    """
    size = lax.axis_size(axis)

    def own(leaf: Array) -> Array:
        length = leaf.shape[0] // size
        return lax.dynamic_slice_in_dim(leaf, lax.axis_index(axis) * length, length)

    found = function(*jax.tree.map(own, trees))
    return jax.tree.map(lambda leaf: lax.all_gather(leaf, axis, axis=0, tiled=True), found)
