"""Tables that are spread over the devices of a mesh, on one host or on many."""

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.tables.base import RECORDS, Batch, Division, Gathered, own_batch
from tacit.typing import Array, Key, Tree

__all__ = [
    "CHAINS",
    "PARAMETERS",
    "Distributed",
    "Shared",
    "at_home",
    "cut_of",
    "describe_mesh",
    "device_mesh",
    "everywhere",
    "for_records",
    "largest_share",
    "mesh_of",
    "on_table",
    "shared_among",
]

CHAINS = "chains"
"""The axis of a mesh among whose devices the chains of a run are shared."""

PARAMETERS = "parameters"
"""The axis of a mesh among whose devices parameters are cut; XLA shares out the work on them."""


def device_mesh(*, records: int | None = None, chains: int = 1, parameters: int = 1) -> Mesh:
    """Returns a mesh of the devices of all processes.

    Args:
      records: among how many devices a table is cut; by default among all that there are.
      chains: how many such groups share the chains of a run, each with a table of its own.
      parameters: among how many devices parameters and the rest of a state are cut, for networks
        that are too large for one.

    Example:
      >>> dict(device_mesh(records=1).shape)
      {'records': 1}
    """
    devices = jax.devices()
    _check.positive_integer(chains=chains, parameters=parameters)
    records = len(devices) // (chains * parameters) if records is None else records
    _check.positive_integer(records=records)
    sizes = {CHAINS: chains, RECORDS: records, PARAMETERS: parameters}
    if math.prod(sizes.values()) > len(devices):
        raise InvalidArgumentError(
            f"chains={chains}, records={records} and parameters={parameters} must multiply to at"
            f" most {len(devices)}, the devices that JAX finds."
        )
    axes = {name: size for name, size in sizes.items() if size > 1 or name == RECORDS}
    chosen = np.array(devices[: math.prod(sizes.values())])
    return Mesh(chosen.reshape(*axes.values()), tuple(axes))


def for_records(mesh: Mesh) -> Mesh:
    """Returns a user's mesh as it is used here, or raises unless it can hold a table."""
    if RECORDS not in mesh.shape:
        raise InvalidArgumentError(
            f'mesh must have an axis "{RECORDS}"; got {mesh.axis_names}. Make one with'
            " tacit.tables.device_mesh()."
        )
    idle = set(range(jax.process_count())) - {device.process_index for device in mesh.devices.flat}
    if idle:
        raise InvalidArgumentError(
            f"mesh must have devices of all {jax.process_count()} processes; it has none of process"
            f" {min(idle)}. Use all devices, or start fewer processes."
        )
    return Mesh(mesh.devices, mesh.axis_names)  # without axes whose cuts have to be spelt out


def describe_mesh(mesh: Mesh | None) -> str:
    """Returns a text that is equal for equal meshes."""
    if mesh is None:
        return "one device"
    return f"{dict(mesh.shape)} of {[device.id for device in mesh.devices.flat]}"


def largest_share(mesh: Mesh | None) -> float:
    """Returns the largest part of a mesh's devices that one process has."""
    if mesh is None:
        return 1.0
    owners = Counter(device.process_index for device in mesh.devices.flat)
    return max(owners.values()) / mesh.size


@runtime_checkable
class Shared(Protocol):
    """A table, or several, that the devices of a mesh can share."""

    @property
    def mesh(self) -> Mesh | None:
        """The devices; None where one works alone."""
        ...

    @property
    def is_part(self) -> bool:
        """Whether it is seen by one of them, inside of `on_table`."""
        ...

    @property
    def specs(self) -> Tree:
        """How its leaves are cut among them."""
        ...

    def part(self) -> Self:
        """Returns it as one of them sees it."""
        ...


def mesh_of(table: Any) -> Mesh | None:
    """Returns the devices that share a table, seen from outside; None where one works alone."""
    return table.mesh if isinstance(table, Shared) and not table.is_part else None


def on_table(function: Callable[..., Tree], table: Any, *arguments: Tree) -> Tree:
    """Runs ``function(table, *arguments)``, on every device of the table's mesh in step.

    Where devices share the table, each calls the function with its own part of it. Arguments and
    results are alike on all of them: what a device knows of its records leaves it by sums over
    devices only (`sum_over_devices`). Inside of it, and where one device works alone, it is a
    plain call.
    """
    mesh = mesh_of(table)
    if mesh is None:
        return function(table, *arguments)

    def on_device(table: Shared, *arguments: Tree) -> Tree:
        return function(table.part(), *arguments)

    # Varying axes are not tracked: clipping tries losses out of the map's context, too.
    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(table.specs, *(P() for _ in arguments)),
        out_specs=P(),
        axis_names=set(mesh.axis_names) - {PARAMETERS},
        check_vma=False,
    )(table, *arguments)


def shared_among(axis: str, function: Callable[..., Tree], *trees: Tree) -> Tree:
    """Runs a function on this device's part of the leading axis, and gathers all devices' results.

    To be called inside of `on_table`. Each device of the axis takes an equal run of the leading
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


def cut_of(shape: tuple[int, ...], mesh: Mesh) -> P:
    """Returns how an array of a state is cut: along its longest axis that can be, or not at all."""
    size = mesh.shape.get(PARAMETERS, 1)
    fitting = [axis for axis, length in enumerate(shape) if length % size == 0 and length >= size]
    if size == 1 or not fitting:
        return P()
    longest = max(fitting, key=lambda axis: shape[axis])
    return P(*(PARAMETERS if axis == longest else None for axis in range(len(shape))))


def everywhere(tree: Tree, mesh: Mesh, spec_of: Callable[[Array], P] | None = None) -> Tree:
    """Puts values that all processes have alike on the devices of a mesh, whole or cut.

    Unlike ``jax.device_put`` this does not ask the other processes, so any thread may call it.
    """

    def put(leaf: Any) -> Array:
        values = np.asarray(leaf)
        spec = P() if spec_of is None else spec_of(leaf)
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, spec), lambda index: values[index]
        )

    return jax.tree.map(put, tree)


def at_home(tree: Tree) -> Tree:
    """Returns values on the devices of a mesh as arrays of this process's own device.

    Where they are cut among processes, all of these must call it.
    """

    def whole(leaf: Array) -> Array:
        if leaf.is_fully_replicated or leaf.is_fully_addressable:
            return jnp.asarray(np.asarray(leaf))
        return jnp.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows"],
    meta_fields=["mesh", "num_records", "is_part"],
)
@dataclass(frozen=True, kw_only=True)
class Distributed:
    """A table cut into equal runs of rows, one for each device along the axis "records".

    Guarantee:
      A sum over a batch is that of the whole table in memory, up to the order of summation, and no
      record is left out; see `own_batch`. So a release costs what it costs without shards.

    Attributes:
      rows: the records and, behind them, rows of zeros that are never drawn.
      mesh: the devices.
      num_records: how many records there are.
      is_part: whether ``rows`` are those of one device, as that device sees the table.
    """

    rows: Tree = field(repr=False)  # never shown: they are private
    mesh: Mesh = field(repr=False)
    num_records: int
    is_part: bool = field(default=False, repr=False)

    @property
    def record(self) -> Tree:
        """The shapes of one record."""
        return _tree.row_shapes(self.rows)

    @property
    def division(self) -> Division:
        """How the devices share it."""
        found = Division.among(self.mesh, self.num_records)
        assert found is not None
        return found

    @property
    def specs(self) -> "Distributed":
        """How the leaves are cut among the devices of the mesh."""
        return replace(self, rows=P(RECORDS))

    def part(self) -> "Distributed":
        """Returns the table as a device sees it inside of `on_table`, where rows are its own."""
        return replace(self, is_part=True)

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Takes the rows that this device owns of the batch; see `Table`."""
        assert self.is_part
        division = self.division
        own = own_batch(
            batch, slots_key, division=division, num_records=self.num_records, rate=rate
        )
        if rate >= 1:
            return Gathered(self.rows, own)
        first = lax.axis_index(RECORDS) * division.rows_in_shard
        return Gathered(_tree.take(self.rows, jnp.where(own.mask, own.indices - first, 0)), own)
