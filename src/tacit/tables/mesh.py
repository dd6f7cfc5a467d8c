"""Meshes of devices: who shares a table, and what lies on all of them alike."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tacit.errors import InvalidArgumentError
from tacit.tables.scattered import RECORDS
from tacit.typing import Array, Tree

__all__ = [
    "at_home",
    "everywhere",
    "is_spread",
    "over_shards",
    "records_mesh",
    "require_records_axis",
]


def records_mesh(num_devices: int | None = None) -> Mesh:
    """Returns a mesh of one axis, "records", over all devices of all processes or the first few.

    Example:
      >>> records_mesh(1).shape
      OrderedDict({'records': 1})
    """
    devices = jax.devices()
    if num_devices is not None and not 1 <= num_devices <= len(devices):
        raise InvalidArgumentError(
            f"num_devices must be from 1 to {len(devices)}, what JAX finds; got {num_devices}."
        )
    return Mesh(np.array(devices[:num_devices]), (RECORDS,))


def require_records_axis(mesh: Mesh) -> None:
    """Raises unless a table can be spread over the mesh."""
    if RECORDS not in mesh.shape:
        raise InvalidArgumentError(
            f'mesh must have an axis "{RECORDS}"; got {mesh.axis_names}. Make one with'
            " tacit.tables.records_mesh()."
        )


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
        check_vma=False,
    )(table, *arguments)


def everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Puts values that all processes have alike on every device of a mesh.

    Unlike ``jax.device_put`` this does not ask the other processes, so any thread may call it.
    """

    def put(leaf: Any) -> Array:
        values = np.asarray(leaf)
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, P()), lambda index: values[index]
        )

    return jax.tree.map(put, tree)


def at_home(tree: Tree) -> Tree:
    """Returns values that lie on every device of a mesh as arrays of this process's own device."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), tree)
