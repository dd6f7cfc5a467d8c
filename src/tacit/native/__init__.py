"""The native kernel, where a C++ compiler was found when tacit was installed.

It has ChaCha20, the exact noise, what XLA does slowly in a step (sorting, adding integers), and
reading rows of files.

The kernel computes the same bits as the JAX code that it stands in for, several times faster, and
programs with it compile in a fraction of the time. It runs on CPUs. Which of the two runs is
decided when a program is lowered for a platform. Without the kernel, programs are as if this module
did not exist.

``TACIT_NATIVE`` in the environment may name an instruction level (``avx512``, ``avx2``, ``sse2``,
``plain``), or be ``off``.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.native.build import LIBRARY, build_name
from tacit.typing import Array

__all__ = ["name"]

_TARGETS = (
    "tacit_blocks",
    "tacit_streams",
    "tacit_words",
    "tacit_noise",
    "tacit_integers",
    "tacit_ordered",
    "tacit_firsts",
    "tacit_rounded_sum",
    "tacit_same",
)


def name() -> str:
    """Returns what computes random numbers here, as a statement says it.

    Example:
      >>> name() == "JAX" or name().startswith("native (")
      True
    """
    if _library is None or jax.default_backend() != "cpu":
        return "JAX"
    return f"native ({_library.tacit_level().decode()})"


def is_loaded() -> bool:
    """Returns whether the kernel was built, fits this installation and was not turned off."""
    return _library is not None


def call(
    target: str,
    reference: Callable[..., Any],
    *operands: Array,
    results: tuple[tuple[tuple[int, ...], Any], ...],
    attributes: dict[str, int],
    static: dict[str, Any],
) -> list[Array]:
    """Calls a handler of the kernel, or the JAX function that defines what it computes.

    Args:
      target: the handler's name.
      reference: computes the same bits from the operands. It is what programs for other platforms
        have.
      *operands: arrays without dimensions of vmap; those are added here.
      results: shapes and dtypes.
      attributes: keywords of the handler.
      static: keywords of the reference.
    """
    return _call.bind(
        *operands,
        target=target,
        reference=reference,
        results=tuple((shape, np.dtype(dtype)) for shape, dtype in results),
        attributes=tuple(sorted(attributes.items())),
        static=tuple(sorted(static.items())),
        num_dims=tuple(jnp.ndim(x) for x in operands),
    )


def read_rows(file: int, places: NDArray[np.int64], out: NDArray[Any]) -> bool:
    """Reads the rows of an array from places in a file; other threads go on meanwhile.

    Args:
      file: its descriptor.
      places: where the rows begin.
      out: contiguous; one row for each place.

    Returns:
      Whether all could be read.
    """
    assert _library is not None
    assert places.flags.c_contiguous
    assert out.flags.c_contiguous
    num_bytes = out.nbytes // max(1, len(places))
    found: int = _library.tacit_read_rows(
        ctypes.c_int(file),
        ctypes.c_int64(num_bytes),
        ctypes.c_void_p(places.ctypes.data),
        ctypes.c_int64(len(places)),
        ctypes.c_void_p(out.ctypes.data),
    )
    return found == len(places)


_call = Primitive("tacit_native")
_call.multiple_results = True


def _abstract(*operands: Any, results: Any, num_dims: tuple[int, ...], **_: Any) -> list[Any]:
    batch = operands[0].shape[: operands[0].ndim - num_dims[0]]
    return [jax.core.ShapedArray((*batch, *shape), dtype) for shape, dtype in results]


def _batched(operands: Any, dims: Any, **parameters: Any) -> tuple[list[Array], list[int]]:
    # All operands have all dimensions of vmap, and the handlers take any number of them: thousands
    # of keys are one call.
    (size,) = {x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, dims, strict=True)
    ]
    outputs = _call.bind(*moved, **parameters)
    return outputs, [0] * len(outputs)


def _lower_to_kernel(context: Any, *operands: Any, target: str, attributes: Any, **_: Any) -> Any:
    integers = {key: np.int64(value) for key, value in attributes}
    return jax.ffi.ffi_lowering(target)(context, *operands, **integers)


def _by_reference(
    *operands: Array, reference: Any, static: Any, num_dims: Any, **_: Any
) -> list[Array]:
    function = functools.partial(reference, **dict(static))
    for _dim in range(operands[0].ndim - num_dims[0]):
        function = jax.vmap(function)
    outputs = function(*operands)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@functools.lru_cache(maxsize=256)
def _compiled(parameters: tuple[tuple[str, Any], ...]) -> Callable[..., list[Array]]:
    return jax.jit(lambda *operands: _call.bind(*operands, **dict(parameters)))


def _apply(*operands: Array, **parameters: Any) -> list[Array]:
    with jax.disable_jit(False):
        return _compiled(tuple(sorted(parameters.items())))(*operands)


_call.def_impl(_apply)
_call.def_abstract_eval(_abstract)
batching.primitive_batchers[_call] = _batched
mlir.register_lowering(_call, mlir.lower_fun(_by_reference, multiple_results=True))
mlir.register_lowering(_call, _lower_to_kernel, platform="cpu")


def _load() -> ctypes.CDLL | None:
    level, path = os.environ.get("TACIT_NATIVE", ""), Path(__file__).parent / LIBRARY
    if level == "off" or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.tacit_build.restype = ctypes.c_char_p
        library.tacit_level.restype = ctypes.c_char_p
        library.tacit_read_rows.restype = ctypes.c_int64
        built, expected = library.tacit_build().decode(), build_name(jaxlib.version.__version__)
        if built != expected:
            raise OSError(f"it was built from other sources ({built}, not {expected})")
        for target in _TARGETS:
            function = jax.ffi.pycapsule(getattr(library, target))
            jax.ffi.register_ffi_target(target, function, platform="cpu")
    except Exception as error:  # whatever a foreign file leads to, JAX computes the same
        logging.getLogger(__name__).warning(
            "The native kernel is not used: %s. Install tacit again to build it.", error
        )
        return None
    if level and not library.tacit_choose_level(level.encode()):
        raise InvalidArgumentError(
            f"TACIT_NATIVE must be off or an instruction level of this machine; got {level!r}."
        )
    return library


_library = _load()
