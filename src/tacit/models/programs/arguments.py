"""Arguments: which of them belong to records, which are public, and what stands in for records."""

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.primitives import _PYRO_STACK, Messenger

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.programs.sites import in_plate, one_for_each_record
from tacit.typing import Array, Key

__all__ = [
    "Arguments",
    "Call",
    "RecordRows",
    "blank_records",
    "made_up_records",
    "shapes_with_rows",
    "signature_of",
    "split_arguments",
]

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of one call."""


class Arguments(NamedTuple):
    """A call, taken apart into records and public constants.

    Attributes:
      records: the private arrays; each has one row for each record.
      build: ``build(records)`` puts arrays of any number of rows back into the call, as
        ``(args, kwargs)``. It holds the public constants and no record.
      num_records: how many records there are.
      names: what each array of ``records`` is called, for messages.
    """

    records: list[Array]
    build: Callable[[Sequence[Any]], Call]
    num_records: int
    names: tuple[str, ...]


def split_arguments(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    num_records: int | None = None,
    public: Collection[str] = (),
    signature: inspect.Signature | None = None,
) -> Arguments:
    """Returns the call ``(*args, **kwargs)`` as records and public constants.

    An array with one row for each record belongs to the records, whether it was passed by position
    or by keyword, alone or inside a container. Numbers, strings, None, functions and arrays without
    axes are public constants. Anything else is ambiguous and refused: an array of another length
    may be a public table or a part of the records, and only the caller knows.

    Args:
      args: the positional arguments.
      kwargs: the keyword arguments.
      num_records: how many records there are; by default the rows of the first array.
      public: names of arguments that hold no private value, whatever their shape.
      signature: of the program, as `signature_of` gives it, from which positional arguments have
        their names.

    Raises:
      InvalidArgumentError: if an argument is ambiguous; values are never shown.

    Example:
      >>> split = split_arguments((jnp.ones((5, 2)),), {"y": jnp.ones(5), "scale": 2.0})
      >>> split.num_records, split.names
      (5, ('argument 0', 'y'))
      >>> args, kwargs = split.build([leaf[:1] for leaf in split.records])
      >>> args[0].shape, kwargs["y"].shape, kwargs["scale"]
      ((1, 2), (1,), 2.0)
    """
    if isinstance(public, str):
        raise InvalidArgumentError(
            f"public must be a collection of names; got the string {public!r}. Write ({public!r},)."
        )
    if num_records is not None:
        _check.positive_integer(num_records=num_records)
    named = _named(args, kwargs, signature)
    unknown = set(public) - {name for name, _ in named}
    if unknown:
        raise InvalidArgumentError(
            f"public names no argument {sorted(unknown)}; there are {[name for name, _ in named]}."
        )
    private = [(name, value) for name, value in named if name not in public]
    counted = None
    if num_records is None:
        counted, num_records = _num_rows(private)
    for name, value in private:
        _require_no_list_of_numbers(name, value, num_records)

    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=_is_none)
    names = _leaf_names(named, args, kwargs)
    at: list[int] = []
    for place, ((top, name), leaf) in enumerate(zip(names, leaves, strict=True)):
        if top not in public and _is_record_leaf(name, top, leaf, num_records, counted):
            at.append(place)
    if not at:
        raise InvalidArgumentError(
            f"no argument has one row for each of the {num_records} records. Pass the records to"
            " the program as arguments: an array that it closes over cannot be clipped."
        )
    records = [_as_array(leaves[place]) for place in at]
    # Only public leaves stay: what is built later must not keep the table alive.
    kept = [None if place in at else leaf for place, leaf in enumerate(leaves)]

    def build(rows: Sequence[Any]) -> Call:
        filled = list(kept)
        for place, leaf in zip(at, rows, strict=True):
            filled[place] = leaf
        built: Call = jax.tree.unflatten(tree, filled)
        return built

    return Arguments(records, build, num_records, tuple(names[place][1] for place in at))


def signature_of(program: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a program, whatever handlers it is wrapped in."""
    while isinstance(program, Messenger) and program.fn is not None:
        program = program.fn
    return inspect.signature(program)


def _named(
    args: Sequence[Any], kwargs: Mapping[str, Any], signature: inspect.Signature | None
) -> list[tuple[str, Any]]:
    """The arguments with their names, in order."""
    known: list[str] = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if signature is not None:
        known = [each.name for each in signature.parameters.values() if each.kind in kinds]
    names = [known[at] if at < len(known) else f"argument {at}" for at in range(len(args))]
    return [*zip(names, args, strict=True), *kwargs.items()]


def _leaf_names(
    named: list[tuple[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """For each leaf, the name of its argument and its own."""
    paths = jax.tree_util.tree_leaves_with_path((tuple(args), dict(kwargs)), is_leaf=_is_none)
    names = []
    for path, _ in paths:
        top = named[path[1].idx][0] if path[0].idx == 0 else str(path[1].key)
        rest = jax.tree_util.keystr(path[2:])
        names.append((top, f"{top}{rest}"))
    return names


def _is_none(value: object) -> bool:
    return value is None


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)


def _num_rows(named: list[tuple[str, Any]]) -> tuple[str, int]:
    """The first argument with rows, and how many it has."""
    for name, value in named:
        for leaf in jax.tree.leaves(value):
            if _is_array(leaf) and jnp.ndim(leaf) >= 1:
                return name, int(leaf.shape[0])
    raise InvalidArgumentError(
        "no argument is an array with one row for each record. Pass the records to the program as"
        " arguments: an array that it closes over cannot be clipped."
    )


def _is_record_leaf(
    name: str, argument: str, leaf: Any, num_records: int, counted: str | None
) -> bool:
    """Whether a leaf belongs to the records; raises where only the caller can know.

    Args:
      name: of the leaf.
      argument: in which it is.
      leaf: an array, or anything else.
      num_records: how many records there are.
      counted: the argument in which they were counted, if the caller did not give the number.
    """
    if _is_array(leaf) and not np.ndim(leaf):
        return False
    if _is_array(leaf):
        if leaf.shape[0] == num_records:
            if not jnp.issubdtype(leaf.dtype, jnp.number) and leaf.dtype != bool:
                raise InvalidArgumentError(
                    f"{name} must hold numbers; got an array of {leaf.dtype}. Encode it by public"
                    " categories, as tacit.data does."
                )
            return True
        message = (
            f"{name} has shape {tuple(leaf.shape)} but there are {num_records} records, so it may"
            " be a public table or a part of the records. If it holds no private value, say"
            f" public=({argument!r},); otherwise give it one row for each record."
        )
        if counted not in (None, argument):
            message += (
                f" ({num_records} is the length of {counted!r}; if that one is public, say"
                f" public=({counted!r},).)"
            )
        raise InvalidArgumentError(message)
    if leaf is None or isinstance(leaf, Number | str | bytes) or callable(leaf):
        return False
    raise InvalidArgumentError(
        f"{name} is a {type(leaf).__name__}, which may hold records. Pass arrays with one row for"
        f" each record, or say public=({argument!r},) if it holds no private value."
    )


def _require_no_list_of_numbers(name: str, value: Any, num_records: int) -> None:
    """Raises for a list with a number for each record: as constants they would all be public."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _require_no_list_of_numbers(f"{name}[{key!r}]", each, num_records)
    elif isinstance(value, list | tuple):
        if len(value) == num_records > 1 and any(isinstance(each, Number) for each in value):
            raise InvalidArgumentError(
                f"{name} is a {type(value).__name__} with one number for each of the {num_records}"
                " records. Pass it as an array, so that it is sampled and clipped with them; if it"
                " holds no private value, say so by public=."
            )
        for place, each in enumerate(value):
            _require_no_list_of_numbers(f"{name}[{place}]", each, num_records)


_MOST_COMBINATIONS = 64


def shapes_with_rows(records: Sequence[Any], num_rows: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of ``records`` with another number of rows; no value is read."""
    return [jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in records]


def blank_records(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Returns records of ones, which more programs can have than zeros: scales, counts, labels."""
    return [jax.device_put(np.ones(shape.shape, shape.dtype)) for shape in shapes]


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


def _length(shape: tuple[int, ...], dim: int) -> int:
    """The length of an axis counted from the right; one where there is none."""
    return shape[dim] if len(shape) >= -dim else 1


class RecordRows(Messenger):  # type: ignore[misc]
    """Gives the record plate as many rows as the records at hand, at their own scale.

    The plate's indices become ``0 .. num_rows - 1``, so that a program that subsamples inside sees
    just the records it was given, and the factor ``size / num_rows`` that the plate puts on its
    sites is taken off. Other handlers' scales and masks stay.

    The keys that the program draws are those it would draw on the whole table: what is outside the
    record plate has the same values. Inside, latents are drawn from the record's own key.

    Args:
      fn: the program.
      plate: the name of the record plate.
      num_rows: how many records the program is run on.
      takes_key: whether the plate draws indices when the program runs on the whole table, which
        takes one key from the sequence.
      record_key: where draws inside the plate come from; None leaves them to the program's seed.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        plate: str,
        num_rows: int,
        takes_key: bool,
        record_key: Key | None,
    ) -> None:
        super().__init__(fn)
        self._plate = plate
        self._num_rows = num_rows
        self._takes_key = takes_key
        self._record_key = record_key
        self._size = num_rows
        self._is_taking = False

    def process_message(self, msg: Any) -> None:
        """Replaces the indices of the plate, and scale and key of what is inside."""
        kind = msg["type"]
        if kind == "plate" and msg["name"] == self._plate:
            self._resize(msg)
        elif kind == "sample" and in_plate(msg, self._plate):
            if self._size != self._num_rows:
                msg["scale"] = msg["scale"] / (self._size / self._num_rows)
            if msg["value"] is None and msg["kwargs"]["rng_key"] is None:
                msg["kwargs"]["rng_key"] = self._own_key()
        elif kind == "prng_key" and not self._is_taking and self._is_inside():
            msg["kwargs"]["rng_key"] = self._own_key()
        elif kind == "subsample" and self._is_inside():
            # The rows at hand are the subsample; the plate would ask for the whole table.
            msg["kwargs"]["event_dim"] = None

    def postprocess_message(self, msg: Any) -> None:
        """Refuses what has rows that are not those of the records at hand."""
        dims = [frame.dim for frame in msg.get("cond_indep_stack", ()) if frame.name == self._plate]
        if not dims:
            return
        if msg["type"] == "param" and msg["kwargs"].get("event_dim") is not None:
            # The plate would index it, as soon as it hears of it.
            if _length(jnp.shape(msg["value"]), dims[0] - msg["kwargs"]["event_dim"]) != 1:
                raise one_for_each_record(msg["name"])
        elif msg["type"] == "sample":
            event_dim = len(msg["fn"].event_shape)
            lengths = (
                _length(tuple(msg["fn"].batch_shape), dims[0]),
                _length(jnp.shape(msg["value"]), dims[0] - event_dim),
            )
            if any(length not in (1, self._num_rows) for length in lengths):
                raise InvalidArgumentError(
                    f"the site {msg['name']!r} has {max(lengths)} rows when the program is run on"
                    f" {self._num_rows} of the records. Its rows must be those of its arguments:"
                    " pass all records as arguments and close over none."
                )

    def _resize(self, msg: Any) -> None:
        self._size = msg["args"][0]
        if self._takes_key:
            self._take_key()
        msg["value"] = jnp.arange(self._num_rows)
        msg["args"] = (self._size, self._num_rows)

    def _own_key(self) -> Key | None:
        if self._record_key is None:
            return None
        self._take_key()
        self._record_key, own = jax.random.split(self._record_key)
        return own

    def _take_key(self) -> None:
        """Takes one key from the program's sequence, so that later sites have the usual ones."""
        self._is_taking = True
        numpyro.prng_key()
        self._is_taking = False

    def _is_inside(self) -> bool:
        return any(
            isinstance(handler, numpyro.plate) and handler.name == self._plate
            for handler in _PYRO_STACK
        )
