"""Norm rules: the norm of a record's gradient at a site, without forming the gradient.

A site of the dense kind maps inputs a_t at positions t to outputs; with cotangents d_t the
gradient of its weights is G = sum_t a_t d_t^T. Then

    one position             |G|^2 = |a|^2 |d|^2
    one position, weights j  |j*G|^2 = (a^2)^T (j^2) (d^2)
    several positions        |G|^2 = sum_{t,t'} (a_t . a_t') (d_t . d_t')      (Gram form)
                             or G is formed, whichever is cheaper

and a convolution is dense on patches. In a table, cotangents of positions that look up the same
row add up, so |G|^2 = sum over rows of |sum_t d_t|^2. A leaf that is read as several functions of
itself has a joint form. What has no rule is *formed*: ``vmap`` of the derivative of that one
operation.

Norms must not be under-estimated. The first two forms are sums of positive terms; inputs are
scaled by their largest entry first, so that no square under- or overflows. The Gram form and the
sums of a table's rows cancel, so they are raised by a bound on their rounding error.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from tacit.privacy.clipping.equations import shape_of
from tacit.privacy.clipping.sites import Site
from tacit.typing import Array

__all__ = [
    "Dense",
    "Lookup",
    "Part",
    "Read",
    "Slice",
    "joint_squared_norm",
    "part_of",
    "prefers_joint",
]

_FORMED_PRICE = 8
"""What a number costs that goes through memory, in multiplications; a rough measured figure."""

_UNDERFLOW = 8 * 2.0**-126
"""What a product of scaled factors may lose to underflow, with a margin.

After scaling no factor exceeds one, so a term that underflows at any stage is below the smallest
normal float32. At ordinary scales this adds nothing; where operands are 1e19 apart it keeps the
norm an upper bound.
"""

_GRAM_ERROR = 16 * 2.0**-24
"""Error of a squared Gram norm in float32, relative to (sum_t |a_t||d_t|)^2, with a margin."""


class Part(Protocol):
    """What one site contributes to a value's gradient, for a batch of records."""

    @property
    def description(self) -> str:
        """The form of the rule, in words."""
        ...

    def needs_forming(self, *, is_weighted: bool) -> bool:
        """Whether forming the gradient is cheaper than the rule, or the rule does not apply."""
        ...

    def squared_norm(self, weight: Array | None) -> Array:
        """Returns |weight * G|^2 of each record; the weight has the shape of the value."""
        ...


class Layout(NamedTuple):
    """The order of a value's axes as (group, contracted, free)."""

    group: tuple[int, ...]
    contracted: tuple[int, ...]
    free: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Matrix products and convolutions, as inputs and cotangents at positions.

    Attributes:
      inputs: ``(batch, group, position, contracted)``.
      cotangents: ``(batch, group, position, free)``.
      layout: the value's axes.
      is_stacked: whether groups include the iterations of a scan.
    """

    inputs: Array
    cotangents: Array
    layout: Layout
    is_stacked: bool

    @property
    def description(self) -> str:
        """The form of the rule, in words."""
        return "norms multiply" if self.inputs.shape[2] == 1 else "Gram form"

    def merged(self, other: "Dense") -> "Dense | None":
        """Returns both as one, where the same value is used in the same way at two sites."""
        if (self.layout, self.is_stacked) != (other.layout, other.is_stacked):
            return None
        return Dense(
            inputs=jnp.concatenate([self.inputs, other.inputs], axis=2),
            cotangents=jnp.concatenate([self.cotangents, other.cotangents], axis=2),
            layout=self.layout,
            is_stacked=self.is_stacked,
        )

    def needs_forming(self, *, is_weighted: bool) -> bool:
        """Weighs the Gram form, and the sum that must follow it, against forming the gradient."""
        _, _, positions, contracted = self.inputs.shape
        free = self.cotangents.shape[-1]
        if positions == 1:
            return False
        gram = positions**2 * (contracted + free)
        return is_weighted or _FORMED_PRICE * contracted * free < gram

    def squared_norm(self, weight: Array | None) -> Array:
        """By the product of norms at one position, by the Gram form at several."""
        a, a_scale = _scaled(self.inputs)
        d, d_scale = _scaled(self.cotangents)
        scale = a_scale * d_scale
        a2, d2 = jnp.square(a[:, :, 0]), jnp.square(d[:, :, 0])
        if self.inputs.shape[2] > 1:
            total = self._gram(a, d)
        elif weight is None:
            total = jnp.sum(a2.sum(-1) * d2.sum(-1), axis=-1)
        else:
            largest = jnp.max(jnp.abs(weight))
            w2 = jnp.square(self._ordered(weight) / jnp.where(largest == 0, 1.0, largest))
            scale = scale * largest
            total = jnp.sum(_spread(a2, w2) * d2, axis=(1, 2))
        _, groups, positions, contracted = self.inputs.shape
        num_terms = groups * positions**2 * contracted * self.cotangents.shape[-1]
        return jnp.square(scale) * (total + _UNDERFLOW * num_terms)

    def formed(self, shape: tuple[int, ...]) -> Array:
        """Returns each record's gradient in the value's own shape."""
        # With the contracted axis last this is three times as fast on a CPU as with the free one.
        joined = jnp.einsum("bgtk,bgtm->bgmk", self.inputs, self.cotangents, precision=_PRECISE)
        order = self._order(self.layout.group, self.layout.free, self.layout.contracted)
        split = joined.reshape(len(joined), *(shape[axis] for axis in order))
        back = [order.index(axis) + 1 for axis in range(len(shape))]
        return split.transpose(0, *back)

    def _gram(self, a: Array, d: Array) -> Array:
        inner_a = jnp.einsum("bgtk,bguk->bgtu", a, a, precision=_PRECISE)
        inner_d = jnp.einsum("bgtm,bgum->bgtu", d, d, precision=_PRECISE)
        size = jnp.sum(
            jnp.sqrt(jnp.sum(jnp.square(a), -1) * jnp.sum(jnp.square(d), -1)), axis=(1, 2)
        )
        total = jnp.sum(inner_a * inner_d, axis=(1, 2, 3))
        return jnp.maximum(total, 0.0) + _GRAM_ERROR * jnp.square(size)

    def _ordered(self, weight: Array) -> Array:
        """Returns a value-shaped array as ``(group, contracted, free)``."""
        return weight.transpose(self._order(*self.layout)).reshape(
            self.inputs.shape[1], self.inputs.shape[3], self.cotangents.shape[3]
        )

    def _order(self, *parts: tuple[int, ...]) -> list[int]:
        """The value's axes in the given order, behind the iterations of a scan."""
        shift = 1 if self.is_stacked else 0
        return [*range(shift), *(axis + shift for axes in parts for axis in axes)]


class Read(NamedTuple):
    """One of several functions of a leaf that a loss reads.

    Attributes:
      part: where.
      weight: the derivative J of that function by entry; one number where all are equal.
      is_unit: whether every J is one or minus one.
    """

    part: Dense
    weight: Array
    is_unit: bool


def prefers_joint(reads: list[Read]) -> bool:
    """Whether `joint_squared_norm` applies, and is cheaper than forming the gradients."""
    parts = [read.part for read in reads]
    if len({(part.layout, part.is_stacked) for part in parts}) != 1 or parts[0].is_stacked:
        return False
    places = [(i, read) for i, read in enumerate(reads) for _ in range(read.part.inputs.shape[2])]
    num_products = sum(
        _needs_product(one, other, is_same=i == j)
        for p, (i, one) in enumerate(places)
        for j, other in places[: p + 1]
    )
    return num_products <= _FORMED_PRICE * len(parts)


def _needs_product(one: Read, other: Read, *, is_same: bool) -> bool:
    """Whether J_p J_q differs from entry to entry."""
    return not (is_same and one.is_unit) and max(one.weight.ndim, other.weight.ndim) > 0


def joint_squared_norm(reads: list[Read]) -> Array:
    """Returns |sum_r J_r * G_r|^2 of each record: one leaf read as several functions of itself.

    With positions p, q of all parts it is sum_pq (a_p a_q)^T (J_p J_q) (d_p d_q), products by
    entry: a matrix product for each pair whose J_p J_q differs by entry, the Gram form for others.
    It cancels, so it is raised like the Gram form.
    """
    scaled, scales = [], []
    for part, weight, _ in reads:
        a, a_scale = _scaled(part.inputs)
        d, d_scale = _scaled(part.cotangents)
        largest = jnp.max(jnp.abs(weight))
        j = weight / jnp.where(largest == 0, 1, largest)
        scaled.append((a, d, j if j.ndim == 0 else part._ordered(j)))
        scales.append(a_scale * d_scale * largest)
    top = functools.reduce(jnp.maximum, scales)
    safe = jnp.where(top == 0, 1.0, top)
    total, size, num_terms = jnp.zeros(()), jnp.zeros(()), 0
    places = []
    for i, ((a, own, j), scale) in enumerate(zip(scaled, scales, strict=True)):
        d = own * (scale / safe)[:, None, None, None]
        size += jnp.sum(jnp.sqrt(jnp.sum(a**2, -1) * jnp.sum(d**2, -1)), axis=(1, 2))
        places += [(i, a[:, :, t], d[:, :, t], j) for t in range(a.shape[2])]
    for p, (i, a, d, j) in enumerate(places):
        for q, (other, b, e, k) in enumerate(places[: p + 1]):
            if _needs_product(reads[i], reads[other], is_same=i == other):
                term = jnp.sum(_spread(a * b, j * k) * d * e, axis=(1, 2))
            else:
                sign = 1.0 if i == other and reads[i].is_unit else j * k
                term = sign * jnp.sum(jnp.sum(a * b, -1) * jnp.sum(d * e, -1), axis=-1)
            total += term if p == q else 2.0 * term
            num_terms += 2 * a.shape[1] * a.shape[2] * d.shape[2]
    bound = jnp.maximum(total, 0.0) + _GRAM_ERROR * jnp.square(size)
    return jnp.square(top) * (bound + _UNDERFLOW * num_terms)


def _spread(rows: Array, weight: Array) -> Array:
    """Returns ``(batch, group, free)``: rows ``(batch, group, contracted)`` times the weight."""
    if rows.shape[1] == 1:  # a plain product is much quicker than one with a group of one
        return jnp.matmul(rows[:, 0], weight[0], precision=_PRECISE)[:, None]
    return jnp.einsum("bgk,gkm->bgm", rows, weight, precision=_PRECISE)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Rows of a table, looked up by the record.

    Attributes:
      rows: which, ``(batch, position)``; negative where nothing is looked up.
      cotangents: ``(batch, position, features)``.
    """

    rows: Array
    cotangents: Array

    @property
    def description(self) -> str:
        """The form of the rule, in words."""
        return "equal rows add up"

    def needs_forming(self, *, is_weighted: bool) -> bool:
        """Never: the table is much larger than what one record looks up."""
        del is_weighted
        return False

    def squared_norm(self, weight: Array | None) -> Array:
        """Cotangents of the same row add up before they are squared."""
        d = jnp.where(self.rows[..., None] >= 0, self.cotangents, 0.0)
        if weight is not None:
            d = d * jnp.take(weight.reshape(weight.shape[0], -1), jnp.maximum(self.rows, 0), axis=0)
        d, scale = _scaled(d[:, None])
        d = d[:, 0]
        record = jnp.arange(len(d))[:, None]
        first = jnp.argmax(self.rows[:, :, None] == self.rows[:, None, :], axis=2)
        summed = jnp.zeros_like(d).at[record, first].add(d)
        # Terms that cancel leave an error of about their number times the sum of their norms.
        lengths = jnp.sqrt(jnp.sum(jnp.square(d), axis=-1))
        sizes = jnp.zeros_like(lengths).at[record, first].add(lengths)
        positions, features = d.shape[1:]
        error = 4 * (positions + 1) * 2.0**-24 * jnp.sum(jnp.square(sizes), axis=1)
        total = jnp.sum(jnp.square(summed), axis=(1, 2)) + error
        return jnp.square(scale) * (total + _UNDERFLOW * positions * features)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One contiguous part of a value, at a place that the record chooses."""

    cotangents: Array

    @property
    def description(self) -> str:
        """The form of the rule, in words."""
        return "the cotangent's own norm"

    def needs_forming(self, *, is_weighted: bool) -> bool:
        """Only for weights, which would have to be sliced alike."""
        return is_weighted

    def squared_norm(self, weight: Array | None) -> Array:
        """The cotangent itself, surrounded by zeros."""
        del weight
        d = self.cotangents.reshape(len(self.cotangents), 1, 1, -1)
        d, scale = _scaled(d)
        return jnp.square(scale) * jnp.sum(jnp.square(d), axis=(1, 2, 3))


_PRECISE = lax.Precision.HIGHEST


def part_of(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    """Returns what a site adds to the gradient of its operand ``at``, or None without a rule.

    Args:
      site: the operation.
      at: the position of the trained value among its operands.
      data: record operands for a batch: ``(batch, [iteration,] ...)``.
      cotangents: of its results, likewise.
    """
    rule = {
        "dot_general": _dot_part,
        "conv_general_dilated": _convolution_part,
        "gather": _gather_part,
        "dynamic_slice": _slice_part,
    }.get(site.name)
    if rule is None or len(site.trained) != 1:
        return None
    return rule(site, at, data, cotangents)


def _dot_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    if len(data) != 1 or site.equation is None:
        return None  # both operands are parameters
    (left, right), (left_batch, right_batch) = site.equation.params["dimension_numbers"]
    axes = ((left, left_batch), (right, right_batch))
    contracted, group = axes[at]
    a_contracted, a_group = axes[1 - at]
    rank = len(shape_of(site.equation.invars[at]))
    a_rank = len(shape_of(site.equation.invars[1 - at]))
    free = tuple(i for i in range(rank) if i not in (*contracted, *group))
    a_free = tuple(i for i in range(a_rank) if i not in (*a_contracted, *a_group))
    inputs = _arranged(data[0], site, (a_group, a_free, a_contracted))
    out = list(range(len(group) + len(a_free) + len(free)))
    ends = (len(group), len(group) + len(free if at == 0 else a_free))
    first, second = out[ends[0] : ends[1]], out[ends[1] :]
    positions, features = (second, first) if at == 0 else (first, second)
    d = _arranged(cotangents[0], site, (tuple(out[: ends[0]]), tuple(positions), tuple(features)))
    return _dense(site, at, inputs, d, Layout(tuple(group), tuple(contracted), free))


def _convolution_part(
    site: Site, at: int, data: list[Array], cotangents: list[Array]
) -> Part | None:
    assert site.equation is not None
    params = site.equation.params
    is_plain = (
        at == 1
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and all(step == 1 for step in params["lhs_dilation"])
    )
    if not is_plain:
        return None
    numbers = params["dimension_numbers"]
    out_axis, in_axis, *space = numbers.rhs_spec
    kernel = [shape_of(site.equation.invars[1])[axis] for axis in space]
    places = [shape_of(site.equation.outvars[0])[axis] for axis in numbers.out_spec[2:]]

    def patches(x: Array) -> Array:
        """Returns (group, position, kernel x channel): slices are much quicker than an unfold."""
        image, channel, *axes = numbers.lhs_spec
        x = jnp.pad(x.transpose(image, *axes, channel), [(0, 0), *params["padding"], (0, 0)])
        slices = []
        for offset in itertools.product(*(range(length) for length in kernel)):
            start = [o * step for o, step in zip(offset, params["rhs_dilation"], strict=True)]
            strides = params["window_strides"]
            stop = [
                first + (count - 1) * step + 1
                for first, count, step in zip(start, places, strides, strict=True)
            ]
            slices.append(
                lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *strides, 1))
            )
        return jnp.concatenate(slices, axis=-1).reshape(1, -1, len(slices) * x.shape[-1])

    def features(d: Array) -> Array:
        image, channel, *axes = numbers.out_spec
        moved = d.transpose(image, *axes, channel)
        return moved.reshape(1, -1, moved.shape[-1])

    mapped_patches, mapped_features = jax.vmap(patches), jax.vmap(features)
    if site.scope is not None:
        mapped_patches, mapped_features = jax.vmap(mapped_patches), jax.vmap(mapped_features)
    layout = Layout((), (*space, in_axis), (out_axis,))
    return _dense(site, at, mapped_patches(data[0]), mapped_features(cotangents[0]), layout)


def _gather_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    assert site.equation is not None
    params = site.equation.params
    numbers = params["dimension_numbers"]
    table = shape_of(site.equation.invars[0])
    indices = shape_of(site.equation.invars[1])
    is_row_lookup = (
        at == 0
        and site.scope is None
        and numbers.collapsed_slice_dims == (0,)
        and numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims
        and tuple(params["slice_sizes"]) == (1, *table[1:])
        and numbers.offset_dims == tuple(range(len(indices) - 1, len(indices) - 1 + len(table) - 1))
    )
    if not is_row_lookup:
        return None
    batch = len(data[0])
    rows = data[0].reshape(batch, -1)
    d = cotangents[0].reshape(batch, rows.shape[1], -1)
    if params["mode"] == lax.GatherScatterMode.CLIP:
        rows = jnp.clip(rows, 0, table[0] - 1)
    else:
        rows = jnp.where((rows >= 0) & (rows < table[0]), rows, -1)
    return Lookup(rows=rows, cotangents=d)


def _slice_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    del data
    return Slice(cotangents=cotangents[0]) if at == 0 and site.scope is None else None


def _arranged(x: Array, site: Site, axes: tuple[tuple[int, ...], ...]) -> Array:
    """Returns ``(batch, [iteration,] a, b, c)`` with the named axes of one record joined."""
    lead = 1 if site.scope is None else 2
    order = [axis + lead for part in axes for axis in part]
    moved = x.transpose(*range(lead), *order)
    joined, place = [], lead
    for part in axes:
        length = 1
        for _ in part:
            length *= moved.shape[place]
            place += 1
        joined.append(length)
    return moved.reshape(*x.shape[:lead], *joined)


def _dense(site: Site, at: int, inputs: Array, d: Array, layout: Layout) -> Dense:
    """Turns the loop axis into positions, or into groups where weights differ by iteration."""
    is_stacked = site.is_stacked[at]
    if site.scope is not None:
        inputs, d = (_fold_loop(x, as_groups=is_stacked) for x in (inputs, d))
    return Dense(inputs=inputs, cotangents=d, layout=layout, is_stacked=is_stacked)


def _fold_loop(x: Array, *, as_groups: bool) -> Array:
    batch, length, groups, positions, features = x.shape
    if as_groups:
        return x.reshape(batch, length * groups, positions, features)
    return x.swapaxes(1, 2).reshape(batch, groups, length * positions, features)


def _scaled(x: Array) -> tuple[Array, Array]:
    """Returns each record's array divided by its largest entry, and that entry."""
    largest = jnp.max(jnp.abs(x), axis=(1, 2, 3))
    # Zero stays zero; what is not finite stays so, and the record is dropped.
    scale = jnp.where(largest == 0, 1.0, largest)
    return x / scale[:, None, None, None], largest
