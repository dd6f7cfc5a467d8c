"""Compiled kernels: built and compiled once for a method and a model, however often they run."""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.sharding import Mesh

from tacit.inference.method import Kernel
from tacit.models import Model
from tacit.privacy.clipping.equations import bind, inlined
from tacit.tables.distributed import CHAINS, PARAMETERS, cut_of, mesh_of, on_table, shared_among
from tacit.tables.on_host import Fetched, Recorder
from tacit.typing import Array, Key, Tree

__all__ = [
    "Builder",
    "Compiled",
    "compiled_kernel",
    "forget_kernels",
    "step_key",
    "step_on_table",
    "without_repeats",
]

_NUM_KEPT = 16

_M = TypeVar("_M")
_M_contra = TypeVar("_M_contra", contravariant=True)


class Builder(Protocol[_M_contra]):
    """What makes a kernel of something: a method, of a model or of a program."""

    def build(self, model: _M_contra) -> Kernel:
        """Returns the three pure functions."""
        ...


class Compiled(NamedTuple):
    """A kernel, and the compiled function that takes chains on by many steps.

    Attributes:
      kernel: what the method made of the model.
      advance: ``advance(keys, states, records, boundaries)`` takes all chains from the first
        boundary to the last, and emits what is kept at each. Boundaries are values, not shapes, so
        one compilation serves every chunk.
    """

    kernel: Kernel
    advance: Callable[[Key, Tree, Tree, Array], tuple[Tree, Tree]]


def compiled_kernel(method: Builder[_M], model: _M) -> Compiled:
    """Returns the kernel of a method for a model: the same one for equal methods.

    What is kept knows no record: kernels that close over the table are refused before they run. It
    is kept only where nothing can change behind its back: for frozen methods, and models made of
    this package's own parts, or fixed for good when they were prepared (``is_fixed``). A user's
    other functions may read what was changed since they were compiled, so they are compiled for
    every run.
    """
    parts = _Parts(model)
    is_fixed = getattr(model, "is_fixed", False) or getattr(model, "spec", None) is not None
    if not is_fixed or not _is_frozen(method) or not isinstance(method, Hashable):
        return _compile(method, parts)
    try:
        hash((method, parts))
    except TypeError:  # a setting that cannot be looked up, such as an array
        return _compile(method, parts)
    return _kept(method, parts)


def forget_kernels() -> None:
    """Drops all kernels that are kept, for tests that change what kernels are made of."""
    _kept.cache_clear()


def _is_frozen(method: object) -> bool:
    settings = getattr(method, "__dataclass_params__", None)
    return settings is not None and settings.frozen


class _Parts:
    """What a kernel is made of, equal to another when it is made of the same functions."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # What describes a model is not hashable, and no kernel looks at it.
        self._functions: Any = tuple(model[:4]) if isinstance(model, Model) else model

    def __hash__(self) -> int:
        return hash(self._functions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and bool(self._functions == other._functions)


def _compile(method: Builder[Any], parts: _Parts) -> Compiled:
    kernel = _traced_once(method.build(parts.model))
    return Compiled(kernel, jax.jit(functools.partial(_advance, kernel)))


def _traced_once(kernel: Kernel) -> Kernel:
    """Returns the kernel with a step that is traced once for the same shapes.

    A run looks at its step before it compiles it (`require_no_table`), and asks for the shapes of
    what it reports. What was looked at is then what is compiled, too.
    """
    traced = jax.jit(kernel.step, inline=True)

    def step(key: Key, state: Tree, records: Tree) -> tuple[Tree, Tree]:
        # A recorder is no tree of arrays, and wants to be told of the draws of every call.
        return (kernel.step if isinstance(records, Recorder) else traced)(key, state, records)

    return kernel._replace(step=step)


_kept = functools.lru_cache(maxsize=_NUM_KEPT)(_compile)


def step_on_table(kernel: Kernel, key: Key, state: Tree, records: Tree) -> tuple[Tree, Tree]:
    """Makes one step of a kernel on a table, wherever that is."""

    def step(table: Tree, key: Key, state: Tree) -> tuple[Tree, Tree]:
        return kernel.step(key, state, table)

    return on_table(step, records, key, state)


def step_key(key: Key, step: Array | int) -> Key:
    """Returns the key of a chain's step: it follows the step, whatever the chunks are."""
    return jax.random.fold_in(key, step)


def _advance(
    kernel: Kernel, keys: Key, states: Tree, records: Tree, boundaries: Array
) -> tuple[Tree, Tree]:
    mesh = mesh_of(records)
    shares_chains = mesh is not None and CHAINS in mesh.shape
    kernel = _with_states_cut(kernel, mesh)

    def on_shard(shard: Tree, boundaries: Array, *chains: Tree) -> tuple[Tree, Tree]:
        run = functools.partial(_advance_chains, kernel, shard, boundaries)
        return shared_among(CHAINS, run, chains) if shares_chains else run(chains)

    # Around all steps, so that nothing but sums over shards is ever cut among devices.
    return on_table(on_shard, records, boundaries, keys, states, jnp.arange(len(keys)))


def _with_states_cut(kernel: Kernel, mesh: Mesh | None) -> Kernel:
    """Returns the kernel with states that stay cut among the devices that share parameters."""
    if mesh is None or PARAMETERS not in mesh.shape:
        return kernel

    def step(key: Key, state: Tree, records: Tree) -> tuple[Tree, Tree]:
        state, info = kernel.step(key, state, records)
        cut = jax.tree.map(
            lambda leaf: lax.with_sharding_constraint(leaf, cut_of(leaf.shape, mesh)), state
        )
        return cut, info

    return kernel._replace(step=step)


def _advance_chains(
    kernel: Kernel, records: Tree, boundaries: Array, chains: tuple[Key, Tree, Array]
) -> tuple[Tree, Tree]:
    """Takes chains on, given as their keys, states and numbers."""

    def chain(argument: tuple[Key, Tree, Array]) -> tuple[Tree, Tree]:
        key, state, number = argument

        def table_at(t: Array) -> Tree:
            return records.at(number, t) if isinstance(records, Fetched) else records

        def step(t: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            state, total = carry
            state, info = kernel.step(step_key(key, t), state, table_at(t))
            return state, jax.tree.map(jnp.add, total, info)

        def segment(state: Tree, ends: tuple[Array, Array]) -> tuple[Tree, Tree]:
            first, last = ends
            _, info = jax.eval_shape(lambda k, s: kernel.step(k, s, table_at(first)), key, state)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
            state, total = lax.fori_loop(first, last, step, (state, nothing))
            mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(last - first, 1), total)
            return state, (kernel.retain(state), mean)

        return lax.scan(segment, state, (boundaries[:-1], boundaries[1:]))

    return lax.map(chain, chains)


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_repeats(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Returns a function of the same values in which no operation is made twice on one operand.

    A step that differentiates a record's loss and a regulariser on their own draws the same latents
    in both. Compilers find such repeats in straight code, but in the body of a loop XLA first moves
    constants out, a copy for each repeat, and after that takes the repeats for different.

    Example:
      >>> import jax.numpy as jnp
      >>> twice = without_repeats(lambda x: jnp.sin(x) + jnp.sin(x))
      >>> str(jax.make_jaxpr(twice)(1.0)).count("sin")
      1
    """

    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        config: Any = jax.config
        if config.jax_disable_jit:  # then nothing is traced, and branches not taken are not run
            return function(*args, **kwargs)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        arguments = [*closed.consts, *jax.tree.leaves((args, kwargs))]
        results = _once(inlined(closed), arguments)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _once(closed: core.ClosedJaxpr, arguments: list[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    inputs = zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True)
    values: dict[core.Var, Any] = dict(inputs)
    first: dict[core.Var, core.Var] = {}  # of each repeated result, where it was made first
    made: dict[Hashable, list[core.Var]] = {}

    def read(operand: core.Var | core.Literal) -> Any:
        if isinstance(operand, core.Literal):
            return operand.val
        return values[first.get(operand, operand)]

    for equation in jaxpr.eqns:
        name = _name_of(equation, first)
        if name is not None and name in made:
            first |= zip(equation.outvars, made[name], strict=True)
            continue
        outs = bind(equation, list(map(read, equation.invars)))
        values |= zip(equation.outvars, outs, strict=True)
        if name is not None:
            made[name] = list(equation.outvars)
    return [read(out) for out in jaxpr.outvars]


def _name_of(equation: core.JaxprEqn, first: dict[core.Var, core.Var]) -> Hashable | None:
    """Returns what tells an equation from all that give something else; None if nothing does."""
    literals = [operand for operand in equation.invars if isinstance(operand, core.Literal)]
    if equation.effects or any(np.ndim(literal.val) for literal in literals):
        return None
    # As text, zeros of both signs differ and NaN equals itself.
    operands = tuple(
        (repr(operand.val), str(operand.aval))
        if isinstance(operand, core.Literal)
        else first.get(operand, operand)
        for operand in equation.invars
    )
    name = (equation.primitive, frozenset(equation.params.items()), operands)
    try:
        hash(name)
    except TypeError:
        return None
    return name
