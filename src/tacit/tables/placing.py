"""Values on the devices of a mesh, whole on each or cut among them, and back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tacit.tables.mesh import PARAMETERS
from tacit.typing import Array, Tree

__all__ = ["at_home", "cut_of", "everywhere"]


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
