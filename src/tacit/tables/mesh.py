"""Meshes of devices, and what their axes share."""

import math
from collections import Counter

import jax
import numpy as np
from jax.sharding import Mesh

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.tables.scattered import RECORDS

__all__ = ["CHAINS", "PARAMETERS", "describe_mesh", "device_mesh", "for_records", "largest_share"]

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
