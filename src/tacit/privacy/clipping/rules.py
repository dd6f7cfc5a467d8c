"""Norm rules: the norm of a record's gradient at a site, without forming the gradient.

A site of the dense kind maps inputs a_t at positions t to outputs; with cotangents d_t the
gradient of its weights is G = sum_t a_t d_t^T. Then

    one position             |G|^2 = |a|^2 |d|^2
    one position, weights j  |j*G|^2 = (a^2)^T (j^2) (d^2)
    several positions        |G|^2 = sum_{t,t'} (a_t . a_t') (d_t . d_t')      (Gram form)
                             or G is formed, whichever is cheaper

and a convolution is dense on patches (`unfolding`). In a table, cotangents of positions that look
up the same row add up, so |G|^2 = sum over rows of |sum_t d_t|^2. A leaf that is read as several
functions of itself has a joint form. What has no rule is *formed*: ``vmap`` of the derivative of
that one operation.

Every rule returns an upper bound on the norm of the gradient that a record's own floats ``a_t`` and
``d_t`` define in real numbers. A sum of m positive terms is divided by ``1 - gamma_m``;
inputs are scaled by their largest entry first, so that no square under- or overflows. Forms that
cancel are raised by ``gamma_m`` times what they would be without cancelling, ``A^2`` with

    A = sum_t |a_t| |d_t|,

the *spread* of a record. It also bounds what float32 takes from a sum over records, so records are
clipped on it, too (`book_keeping`).
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax

from tacit.privacy.lattice import (
    FEWEST_ROWS,
    UNDERFLOW,
    block_rows,
    gamma,
    lost_to_underflow,
    materialised,
    nested_sum,
    raised,
    scaled,
    scaled_weight,
)
from tacit.typing import Array

__all__ = [
    "Dense",
    "Layout",
    "Lookup",
    "Part",
    "Read",
    "joint_squared_norm",
    "joint_squared_spread",
    "prefers_joint",
]

_PRECISE = lax.Precision.HIGHEST

_FORMED_PRICE = 8
"""What a number costs that goes through memory, in multiplications; a rough measured figure."""


class Layout(NamedTuple):
    """The order of a value's axes as (group, contracted, free)."""

    group: tuple[int, ...]
    contracted: tuple[int, ...]
    free: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Matrix products, as inputs and cotangents at positions.

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
        is_cheaper = _FORMED_PRICE * contracted * free < gram
        return is_weighted or is_cheaper or block_rows(positions) < FEWEST_ROWS

    @property
    def num_positions(self) -> int:
        """How many positions of one record add up."""
        return self.inputs.shape[2]

    def squared_norm(self, weight: Array | None) -> Array:
        """By the product of norms at one position, by the Gram form at several.

        Operations, beside those of a sum itself: a quotient and a square for each factor, the
        products, the scale. The sums over groups come on top.
        """
        a, a_scale = scaled(self.inputs)
        d, d_scale = scaled(self.cotangents)
        scale = a_scale * d_scale
        _, groups, positions, contracted = self.inputs.shape
        free = self.cotangents.shape[-1]
        if positions > 1:
            total = self._gram(a, d)
        elif weight is None:
            a2, a_operations = nested_sum(jnp.square(a[:, :, 0]))
            d2, d_operations = nested_sum(jnp.square(d[:, :, 0]))
            total = raised(jnp.sum(a2 * d2, axis=-1), a_operations + d_operations + groups + 8)
        else:
            w, w_scale = scaled_weight(self._ordered(weight))
            w2, scale = jnp.square(w), scale * w_scale
            terms = _spread(jnp.square(a[:, :, 0]), w2) * jnp.square(d[:, :, 0])
            total = raised(jnp.sum(terms, axis=(1, 2)), contracted + groups * free + 12)
        num_terms = groups * positions**2 * contracted * free
        return raised(jnp.square(scale) * (total + UNDERFLOW * num_terms), 8)

    def squared_spread(self) -> Array:
        """Returns A^2 of each record, from above: over groups, the root of the sum of squares."""
        a, a_scale = scaled(self.inputs)
        d, d_scale = scaled(self.cotangents)
        total = jnp.sum(jnp.square(self._spread_of_groups(a, d)), axis=1)
        _, groups, positions, contracted = self.inputs.shape
        operations = contracted + self.cotangents.shape[-1] + 2 * positions + groups + 16
        return raised(jnp.square(a_scale * d_scale) * total, operations)

    def block_sums(self, weights: Array, count: int) -> Array:
        """Returns ``sum_i weights_i G_i`` over each of equal blocks of records, in float32.

        Args:
          weights: one for each record; a zero leaves a record out, whatever its numbers are.
          count: of the blocks into which the records are cut, in order.

        Returns:
          ``(count, ...)`` in the value's own shape but for axes of the value's size.
        """
        keep = weights > 0
        a, d = (_blocks(_kept(x, keep), count) for x in (self.inputs, self.cotangents))
        d = d * _blocks(weights, count)[..., None, None, None]
        contracted_first = self.layout.contracted < self.layout.free
        out = "gkm" if contracted_first else "gmk"
        if count == 1 and a.shape[2] == 1:  # a plain product is much quicker
            sums = jnp.einsum(f"rtk,rtm->{out[1:]}", a[0, :, 0], d[0, :, 0], precision=_PRECISE)[
                None, None
            ]
        else:
            sums = jnp.einsum(f"nrgtk,nrgtm->n{out}", a, d, precision=_PRECISE)
        return sums

    def in_shape_of_value(self, sums: Array, shape: tuple[int, ...]) -> Array:
        """Returns `block_sums` with the axes of a value."""
        contracted_first = self.layout.contracted < self.layout.free
        last = (self.layout.contracted, self.layout.free)
        order = self._order(self.layout.group, *(last if contracted_first else last[::-1]))
        split = sums.reshape(len(sums), *(shape[axis] for axis in order))
        return split.transpose(0, *(order.index(axis) + 1 for axis in range(len(shape))))

    def formed(self, shape: tuple[int, ...]) -> Array:
        """Returns each record's gradient in the value's own shape."""
        return self.out_of_joined(self.joined(), shape)

    def joined(self) -> Array:
        """Returns each record's gradient as ``(batch, [group,] free, contracted)``."""
        a, d = self.inputs, self.cotangents
        # With the contracted axis last this is three times as fast on a CPU as with the free one.
        if a.shape[1] == 1:  # a product can be materialised where it is, but not in another shape
            return jnp.einsum("btk,btm->bmk", a[:, 0], d[:, 0], precision=_PRECISE)
        return jnp.einsum("bgtk,bgtm->bgmk", a, d, precision=_PRECISE)

    def out_of_joined(self, joined: Array, shape: tuple[int, ...]) -> Array:
        """Returns `joined` gradients, or sums of them, with the axes of a value."""
        order = self._order(self.layout.group, self.layout.free, self.layout.contracted)
        split = joined.reshape(len(joined), *(shape[axis] for axis in order))
        back = [order.index(axis) + 1 for axis in range(len(shape))]
        return split.transpose(0, *back)

    def _gram(self, a: Array, d: Array) -> Array:
        """The Gram form, raised by gamma_m A^2: it has sums over k, m, and twice over t."""
        inner_a = jnp.einsum("bgtk,bguk->bgtu", a, a, precision=_PRECISE)
        inner_d = jnp.einsum("bgtm,bgum->bgtu", d, d, precision=_PRECISE)
        _, groups, positions, contracted = self.inputs.shape
        # Or the compiler might add all pairs of positions in one sequence.
        rows = materialised(jnp.sum(inner_a * inner_d, axis=3))
        total = jnp.sum(rows, axis=(1, 2))
        free = self.cotangents.shape[-1]
        operations = contracted + free + (1 + groups) * positions + groups + 16
        size = jnp.sum(jnp.square(self._spread_of_groups(a, d)), axis=1)
        size = raised(size, contracted + free + 2 * positions + groups + 16)
        return jnp.maximum(total, 0.0) + gamma(operations) * size

    def _spread_of_groups(self, a: Array, d: Array) -> Array:
        """Returns sum_t |a_t| |d_t| of each group, for scaled a and d."""
        lengths = jnp.sqrt(jnp.sum(jnp.square(a), -1)) * jnp.sqrt(jnp.sum(jnp.square(d), -1))
        return jnp.sum(lengths, axis=2) + a.shape[2] * lost_to_underflow(a.shape[-1] * d.shape[-1])

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
    It cancels, so it is raised like the Gram form, by gamma_m A^2.
    """
    top, places = _joint_places(reads)
    total, num_terms = jnp.zeros(()), 0
    for p, (i, a, d, j) in enumerate(places):
        for q, (other, b, e, k) in enumerate(places[: p + 1]):
            if _needs_product(reads[i], reads[other], is_same=i == other):
                term = jnp.sum(_spread(a * b, j * k) * d * e, axis=(1, 2))
            else:
                sign = 1.0 if i == other and reads[i].is_unit else j * k
                term = sign * jnp.sum(jnp.sum(a * b, -1) * jnp.sum(d * e, -1), axis=-1)
            total += term if p == q else 2.0 * term
            num_terms += 2 * a.shape[1] * a.shape[2] * d.shape[2]
    size, operations = _joint_spread(reads, places)
    bound = jnp.maximum(total, 0.0) + gamma(operations) * size
    return raised(jnp.square(top) * (bound + UNDERFLOW * num_terms), 8)


def joint_squared_spread(reads: list[Read]) -> Array:
    """Returns A^2 of each record, with A the sum of |J_r * a_p d_p^T| over reads and positions."""
    top, places = _joint_places(reads)
    size, _ = _joint_spread(reads, places)
    return raised(jnp.square(top) * size, 8)


_Place: TypeAlias = tuple[int, Array, Array, Array]


def _joint_places(reads: list[Read]) -> tuple[Array, list[_Place]]:
    """Returns a scale for each record, and every position: its read, scaled a, d, and J."""
    found, scales = [], []
    for part, weight, _ in reads:
        a, a_scale = scaled(part.inputs)
        d, d_scale = scaled(part.cotangents)
        j, j_scale = scaled_weight(weight)
        found.append((a, d, j if j.ndim == 0 else part._ordered(j)))
        scales.append(a_scale * d_scale * j_scale)
    top = functools.reduce(jnp.maximum, scales)
    safe = jnp.where(top == 0, 1.0, top)
    places = []
    for i, ((a, own, j), scale) in enumerate(zip(found, scales, strict=True)):
        d = own * (scale / safe)[:, None, None, None]
        places += [(i, a[:, :, t], d[:, :, t], j) for t in range(a.shape[2])]
    return top, places


def _joint_spread(reads: list[Read], places: list[_Place]) -> tuple[Array, int]:
    """Returns A^2 of the scaled places from above, and how many operations the form takes."""
    spread, longest = jnp.zeros(()), 0
    for i, a, d, j in places:
        if j.ndim == 0 or reads[i].is_unit:
            squared = jnp.sum(jnp.sum(a**2, -1) * jnp.sum(d**2, -1), axis=-1)
        else:
            squared = jnp.sum(_spread(a**2, j**2) * d**2, axis=(1, 2))
        longest = max(longest, a.shape[2] + a.shape[1] * d.shape[2])
        spread += jnp.sqrt(squared) + lost_to_underflow(a.shape[1] * a.shape[2] * d.shape[2])
    operations = longest + len(places) ** 2 + 24
    return raised(jnp.square(spread), operations), operations


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
        """Cotangents of the same row add up before they are squared.

        A computed sum of T of them is off by at most gamma_T times the sum of their norms; norms
        of errors add up, so |G| is at most the computed norm and gamma_T times that of the sizes.
        """
        d, scale = scaled(self.weighted(weight)[:, None])
        d = d[:, 0]
        record = jnp.arange(len(d))[:, None]
        first = jnp.argmax(self.rows[:, :, None] == self.rows[:, None, :], axis=2)
        summed = jnp.zeros_like(d).at[record, first].add(d)
        lengths = jnp.sqrt(jnp.sum(jnp.square(d), axis=-1))
        sizes = jnp.zeros_like(lengths).at[record, first].add(lengths)
        positions, features = d.shape[1:]
        operations = (positions + 1) * features + 3 * positions + 8
        total = raised(jnp.sum(jnp.square(summed), axis=(1, 2)), operations)
        size = raised(jnp.sum(jnp.square(sizes), axis=1), operations)
        norm = jnp.sqrt(total) + gamma(positions + 1) * jnp.sqrt(size)
        return raised(jnp.square(scale * (norm + positions * lost_to_underflow(features))), 16)

    def weighted(self, weight: Array | None) -> Array:
        """Returns the cotangents times the weights of their rows; zero where nothing is read."""
        d = jnp.where(self.rows[..., None] >= 0, self.cotangents, 0.0)
        if weight is not None:
            d = d * jnp.take(weight.reshape(weight.shape[0], -1), jnp.maximum(self.rows, 0), axis=0)
        return d


Part: TypeAlias = Dense | Lookup
"""What one site contributes to a value's gradient, for a batch of records."""


def _kept(x: Array, keep: Array) -> Array:
    """Zeroes the rows of records that are left out, since zero times infinity is not zero."""
    return jnp.where(keep.reshape(-1, *(1 for _ in x.shape[1:])), x, 0.0)


def _blocks(x: Array, count: int) -> Array:
    """Cuts rows into equal blocks, ``(count, rows, ...)``, filled up with zeros."""
    length = -(-x.shape[0] // count)
    padding = [(0, count * length - x.shape[0]), *((0, 0) for _ in x.shape[1:])]
    return jnp.pad(x, padding).reshape(count, length, *x.shape[1:])
