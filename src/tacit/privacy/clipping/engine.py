"""The clipped gradient sum at the price of a plain gradient: norms first, then one weighted sum.

Per-record gradients are never formed where a rule gives their norms:

1. The parameter part of the loss runs once. The record part runs under ``vmap`` with a zero added
   to the result of each site; the derivative with respect to those zeros is the cotangent d of
   each site, and costs a backward pass without its weight gradients.
2. Rules turn record operands a and cotangents d into the norm of each record's gradient.
3. With clip factors c in hand, the clipped sum is ONE derivative: that of ``sum over sites of <c
   d, site(a, parameters)>``, for every operation alike.

What has no rule is formed for those parameters only, in chunks. The result equals the reference
up to rounding; `verification` checks that for each new loss before it is used.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from tacit.privacy.clipping import reference
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.clipping.classification import Map, classify
from tacit.privacy.clipping.rules import (
    Dense,
    Part,
    Read,
    joint_squared_norm,
    part_of,
    prefers_joint,
)
from tacit.privacy.clipping.sites import Site, Value
from tacit.privacy.clipping.tracing import Program
from tacit.typing import Array, Key, Params, Tree

__all__ = ["Recipe", "clipped_sum_by_norms", "make_recipe", "norms_and_sum", "paths_of_norms"]

_MAX_FORMED = 2**26
"""How many numbers may be formed at once, 256 MB in float32; more is done in chunks."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the norm of each parameter leaf is obtained; all of it decided before any record is seen.

    Attributes:
      program: the loss, taken apart.
      reads: the values through which each leaf acts.
      maps: how each of them depends on the leaf.
      are_aligned: whether a leaf's values have their entries in one order.
    """

    program: Program
    reads: tuple[tuple[Value, ...], ...]
    maps: tuple[tuple[Map, ...], ...]
    are_aligned: tuple[bool, ...]

    def uses(self, value: Value) -> list[tuple[Site, int]]:
        """Returns the sites that read a value, with its position among their operands."""
        return [
            (site, at)
            for site in self.program.sites
            for at in site.trained
            if site.values[at] == value
        ]

    def with_consts(self, consts: tuple[Any, ...]) -> "Recipe":
        """Returns the recipe for the same loss closing over other values."""
        return replace(self, program=replace(self.program, consts=consts))

    def is_direct(self, leaf: int) -> bool:
        """Whether the leaf's norm follows from that of one value."""
        return len(self.reads[leaf]) == 1 and self.maps[leaf][0] is not Map.GENERAL


def make_recipe(program: Program) -> Recipe:
    """Returns the recipe for a program."""
    reads = tuple(
        tuple(value for value, leaves in program.values.items() if leaf in leaves)
        for leaf in range(program.num_params)
    )
    paths = [
        [classify(program, leaf, value) for value in values] for leaf, values in enumerate(reads)
    ]
    return Recipe(
        program=program,
        reads=reads,
        maps=tuple(tuple(path.map for path in each) for each in paths),
        are_aligned=tuple(len({path.moves for path in each}) == 1 for each in paths),
    )


def clipped_sum_by_norms(
    recipe: Recipe,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float,
    chunk_size: int | None = None,
) -> Tree:
    """Returns what `reference.clipped_gradient_sum` returns, up to rounding."""
    leaves = jax.tree.leaves(params)

    def chunk_sum(batch: tuple[Tree, Key, Array]) -> Tree:
        return norms_and_sum(recipe, params, *batch, clipping=clipping, clip_norm=clip_norm)[1]

    if chunk_size is None:
        formed = _formed_per_record(recipe, leaves, [*jax.tree.leaves(records), keys])
        chunk_size = max(1, _MAX_FORMED // formed) if formed else None
    return reference.in_chunks(chunk_sum, (records, keys, mask), chunk_size)


def norms_and_sum(
    recipe: Recipe,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float,
) -> tuple[Tree, Tree]:
    """Returns the squared norms of each leaf, ``(batch,)``, and the clipped sum, of one chunk."""
    leaves, treedef = jax.tree.flatten(params)
    work = _Batch(recipe, leaves, [*jax.tree.leaves(records), keys])
    squared = jax.tree.unflatten(treedef, [work.squared_norm(leaf) for leaf in range(len(leaves))])
    factors = jax.tree.leaves(clipping.factors(squared, clip_norm=clip_norm))
    return squared, jax.tree.unflatten(treedef, work.weighted_sum(factors, mask))


def paths_of_norms(recipe: Recipe, leaves: Tree, data: Tree) -> list[tuple[str, int]]:
    """Returns in words how each leaf's norm is obtained, and how many numbers that forms.

    Args:
      recipe: of the loss.
      leaves: the parameters, or their shapes.
      data: a batch of one record, or its shapes.
    """
    ways: list[tuple[str, int]] = []

    def norms(leaves: list[Array], data: list[Array]) -> list[Array]:
        work = _Batch(recipe, leaves, data)
        squared = []
        for leaf in range(len(leaves)):
            before = work.num_formed
            squared.append(work.squared_norm(leaf))
            ways.append((work.way(leaf), work.num_formed - before))
        return squared

    jax.eval_shape(norms, leaves, data)
    return ways


def _formed_per_record(recipe: Recipe, leaves: list[Array], data: list[Array]) -> int:
    """Counts the numbers that are formed for each record, by tracing the norms for one."""
    count = 0

    def norms(leaves: list[Array], data: list[Array]) -> list[Array]:
        nonlocal count
        work = _Batch(recipe, leaves, data)
        squared = [work.squared_norm(leaf) for leaf in range(len(leaves))]
        count = work.num_formed
        return squared

    jax.eval_shape(norms, leaves, jax.eval_shape(lambda d: jax.tree.map(lambda x: x[:1], d), data))
    return count


class _Batch:
    """One batch on its way through the recipe: operands and cotangents of all sites."""

    def __init__(self, recipe: Recipe, leaves: list[Array], data: list[Array]) -> None:
        self.recipe, self.leaves = recipe, leaves
        program = recipe.program
        self.fixed = program.fixed_part()
        self.values = program.parameter_part(leaves, self.fixed)
        self.saved, self.cotangents = jax.vmap(self._cotangents_of_one)(data)
        self.num_records = data[0].shape[0]
        self.num_formed = 0
        self._formed: dict[Value, Array] = {}

    def _cotangents_of_one(self, data: list[Array]) -> tuple[list[list[Array]], list[list[Array]]]:
        program = self.recipe.program
        nudges = [
            [jnp.zeros(shape, dtype) for shape, dtype in shapes]
            for shapes in program.nudge_shapes()
        ]
        loss, pull, saved = jax.vjp(
            lambda nudges: program.record_part(self.values, data, nudges), nudges, has_aux=True
        )
        (cotangents,) = pull(jnp.ones_like(loss))
        return saved, cotangents

    def squared_norm(self, leaf: int) -> Array:
        """Returns the squared norm of each record's gradient for one leaf."""
        reads, maps = self.recipe.reads[leaf], self.recipe.maps[leaf]
        if not reads:
            return jnp.zeros(self.num_records)
        if not self.recipe.is_direct(leaf):
            joint = self._joint(leaf)
            return _squares(self._pulled_back(leaf)) if joint is None else joint_squared_norm(joint)
        (value,) = reads
        weight = self._derivative(leaf, value) if maps[0] is Map.ELEMENTWISE else None
        part = self._part(value)
        if part is None or part.needs_forming(is_weighted=weight is not None):
            formed = self.formed(value)
            return _squares(formed if weight is None else formed * weight)
        return part.squared_norm(weight)

    def _joint(self, leaf: int) -> list[Read] | None:
        """Returns the parts of a leaf that is read as several functions of itself."""
        values, maps = self.recipe.reads[leaf], self.recipe.maps[leaf]
        if len(values) < 2 or Map.GENERAL in maps or not self.recipe.are_aligned[leaf]:
            return None
        reads = []
        for value, kind in zip(values, maps, strict=True):
            part = self._part(value)
            if not isinstance(part, Dense):
                return None
            weight = self._derivative(leaf, value)
            if kind is Map.MOVED:
                weight = weight.reshape(-1)[0]  # all one, or all minus one
            reads.append(Read(part, weight, kind is not Map.ELEMENTWISE))
        return reads if prefers_joint(reads) else None

    def way(self, leaf: int) -> str:
        """Returns in words how a leaf's norm is obtained."""
        reads = self.recipe.reads[leaf]
        if not reads:
            return "not used by the loss"
        names = sorted({site.name for value in reads for site, _ in self.recipe.uses(value)})
        where = f"at {', '.join(names)}"
        if self._joint(leaf) is not None:
            return f"joint Gram form {where}"
        if not self.recipe.is_direct(leaf):
            return f"formed {where}, then pulled back to the parameter"
        part = self._part(reads[0])
        is_weighted = self.recipe.maps[leaf][0] is Map.ELEMENTWISE
        if part is None:
            return f"formed {where}, the size of its values"
        if part.needs_forming(is_weighted=is_weighted):
            return f"formed {where}, cheaper here than its rule"
        return f"{'weighted ' if is_weighted else ''}{part.description} {where}"

    def weighted_sum(self, factors: list[Array], mask: Array) -> list[Array]:
        """Returns, for each leaf, the sum of the records' gradients times the leaf's factors."""
        results: list[Array] = [jnp.zeros(())] * len(self.leaves)
        # Leaves that share a factor (under flat clipping: all) share one derivative.
        groups: dict[int, list[int]] = {}
        for leaf, factor in enumerate(factors):
            groups.setdefault(id(factor), []).append(leaf)
        for members in groups.values():
            factor = jnp.where(mask, factors[members[0]], 0.0)
            _, pull = jax.vjp(
                lambda leaves: self.recipe.program.trained_part(leaves, self.fixed), self.leaves
            )
            (gradients,) = pull(self._value_sums(factor))
            for leaf in members:
                results[leaf] = gradients[leaf]
        return results

    def _value_sums(self, factor: Array) -> list[Array]:
        """Returns the weighted sum of gradients for each trained value."""
        program = self.recipe.program
        keep = factor > 0
        open_values = [value for value in program.values if value not in self._formed]
        sites = [
            site
            for site in program.sites
            if any(site.values[at] in open_values for at in site.trained)
        ]

        def outputs(values: list[Array]) -> list[list[Array]]:
            current = self.values | dict(zip(open_values, values, strict=True))
            return [
                self._mapped(site, lambda site, own, data: site.apply(own, data))(
                    self._own(site, current), [_kept(x, keep) for x in self.saved[site.index]]
                )
                for site in sites
            ]

        _, pull = jax.vjp(outputs, [self.values[value] for value in open_values])
        weighted = [
            [_along(factor, d) * _kept(d, keep) for d in self.cotangents[site.index]]
            for site in sites
        ]
        (sums,) = pull(weighted)
        found = dict(zip(open_values, sums, strict=True))
        for value, formed in self._formed.items():
            found[value] = jnp.tensordot(factor, _kept(formed, keep), axes=1)
        return [found[value] for value in program.values]

    def _part(self, value: Value) -> Part | None:
        """Returns the sites of a value as one part that has a rule, or None."""
        merged, *others = (
            part_of(site, at, self.saved[site.index], self.cotangents[site.index])
            for site, at in self.recipe.uses(value)
        )
        for part in others:
            if not (isinstance(merged, Dense) and isinstance(part, Dense)):
                return None
            merged = merged.merged(part)
        return merged

    def formed(self, value: Value) -> Array:
        """Returns each record's gradient for a value, formed once."""
        if value not in self._formed:
            part = self._part(value)
            if isinstance(part, Dense):
                formed = part.formed(self.values[value].shape)
            else:
                uses = self.recipe.uses(value)
                formed = functools.reduce(jnp.add, [self._site_gradient(*use) for use in uses])
            self._formed[value] = formed
            self.num_formed += formed.size // self.num_records
        return self._formed[value]

    def _site_gradient(self, site: Site, at: int) -> Array:
        def gradient(
            site: Site, own: dict[int, Array], data: list[Array], cotangents: list[Array]
        ) -> Array:
            _, pull = jax.vjp(lambda value: site.apply(own | {at: value}, data), own[at])
            return pull(cotangents)[0]

        own = self._own(site, self.values)
        each = self._mapped(site, gradient)(
            own, self.saved[site.index], self.cotangents[site.index]
        )
        is_summed = site.scope is not None and not site.is_stacked[at]
        return each.sum(1) if is_summed else each

    def _pulled_back(self, leaf: int) -> Array:
        """Returns each record's gradient for a leaf, by way of all values that it acts through."""
        values = self.recipe.reads[leaf]
        self.num_formed += self.leaves[leaf].size

        def part(array: Array) -> list[Array]:
            leaves = [*self.leaves[:leaf], array, *self.leaves[leaf + 1 :]]
            everything = self.recipe.program.parameter_part(leaves, self.fixed)
            return [everything[value] for value in values]

        _, pull = jax.vjp(part, self.leaves[leaf])
        return jax.vmap(lambda formed: pull(formed)[0])([self.formed(value) for value in values])

    def _derivative(self, leaf: int, value: Value) -> Array:
        """Returns d value / d leaf of an elementwise map, in the layout of the value."""

        def part(array: Array) -> Array:
            leaves = [*self.leaves[:leaf], array, *self.leaves[leaf + 1 :]]
            return self.recipe.program.parameter_part(leaves, self.fixed)[value]

        array = self.leaves[leaf]
        return jax.jvp(part, (array,), (jnp.ones_like(array),))[1]

    def _own(self, site: Site, values: dict[Value, Array]) -> dict[int, Array]:
        return {at: values[value] for at, value in site.values.items()}

    def _mapped(self, site: Site, function: Callable[..., Tree]) -> Callable[..., Tree]:
        """Maps a function of one site over records, and over iterations inside a scan."""

        def one(own: dict[int, Array], *data: Tree) -> Tree:
            return function(site, own, *data)

        def mapped(own: dict[int, Array], *data: Tree) -> Tree:
            run = one
            if site.scope is not None:
                axes = {at: 0 if site.is_stacked[at] else None for at in own}
                run = jax.vmap(one, in_axes=(axes, *(0 for _ in data)))
            count = self.num_records
            return jax.vmap(run, in_axes=(None, *(0 for _ in data)), axis_size=count)(own, *data)

        return mapped


def _kept(x: Array, keep: Array) -> Array:
    """Zeroes the rows of dropped records, since zero times infinity is not zero."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.where(_along(keep, x), x, 0.0)


def _along(factor: Array, x: Array) -> Array:
    return factor.reshape(-1, *(1 for _ in x.shape[1:]))


def _squares(formed: Array) -> Array:
    return jnp.sum(jnp.square(formed).reshape(len(formed), -1), axis=1)
