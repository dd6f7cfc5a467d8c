"""The clipped gradient sum at the price of a plain gradient: norms first, then one weighted sum.

Per-record gradients are never formed where a rule gives their norms:

1. The parameter part of the loss runs once. The record part runs under ``vmap`` with a zero added
   to the result of each site; the derivative with respect to those zeros is the cotangent d of
   each site, and costs a backward pass without its weight gradients.
2. Rules turn record operands a and cotangents d into the norm of each record's gradient.
3. With clip factors c in hand, the clipped sum of a matrix product's weights is another matrix
   product, ``a^T (c d)``.

What has no rule is formed for those parameters only, in chunks. The result equals the reference
up to rounding; `gradient` checks that for each new loss before it is used.

**Rounding.** The sum is made of integers on a lattice (`tacit.privacy.lattice`). A parameter's
gradients are summed in one of three ways, chosen from shapes alone:

* *formed*: each record's gradient is a vector of floats. It is clipped by the norm of exactly these
  floats, rounded to the lattice by itself, and added as integers: no other record plays a part.
* *looked up*: each row of a table that a record reads gets its cotangent, rounded by itself.
* *in blocks*: a matrix product adds ``block_rows`` records in float32, and the block's sum is
  rounded. Its error is ``gamma_m sum_i c_i A_i`` at most, and records are clipped on their spread A
  as well as on their norm, so it is known beforehand (`tacit.privacy.lattice.summing_error`).

Where the derivative J of an elementwise function leads from a leaf to the value that is read, norm
and sum multiply by the same floats J; other functions of a leaf are formed in the leaf's own space.
Operands and cotangents are computed once, so that norms and sums read the same numbers.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from tacit.privacy.clipping import bounds
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import Clipped, Clipping
from tacit.privacy.clipping.contributions import (
    Contribution,
    Formed,
    InBlocks,
    LookedUp,
    Unused,
    Way,
    best_chunk_size,
)
from tacit.privacy.clipping.equations import Site, Value
from tacit.privacy.clipping.operations import Map, NormPlan, Path, part_of
from tacit.privacy.clipping.rules import (
    Dense,
    Lookup,
    Part,
    Read,
    joint_squared_norm,
    joint_squared_spread,
    prefers_joint,
)
from tacit.privacy.lattice import Lattice, block_rows, materialised, summing_error
from tacit.typing import Array, Key, Params, Scalar, Tree

__all__ = ["clipped_sum_by_norms", "lattice_of", "norms_and_sum", "ways"]


def clipped_sum_by_norms(
    plan: NormPlan,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Clipped:
    """Returns what `bounds.clipped_sum` returns for gradients, up to rounding."""
    leaves = jax.tree.leaves(params)

    def chunk_sum(batch: tuple[Tree, Key, Array]) -> Clipped:
        return norms_and_sum(
            plan, params, *batch, clipping=clipping, clip_norm=clip_norm, adding=adding
        )[1]

    shapes = [*jax.tree.leaves(records), keys]
    one = jax.eval_shape(lambda data: jax.tree.map(lambda x: x[:1], data), shapes)
    found, held = _ways_and_held(plan, leaves, one)
    if chunk_size is None:
        has_loops = len(plan.program.scans) > 0
        chunk_size = best_chunk_size(found, held, length=len(mask), has_loops=has_loops)
    positions = max((way.num_looked_up for way in found), default=1)
    chunk_size = adding.largest_chunk(chunk_size, positions=positions)
    return bounds.in_chunks(chunk_sum, (records, keys, mask), chunk_size, adding)


def norms_and_sum(
    plan: NormPlan,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    adding: Adding = Adding(),  # noqa: B008
) -> tuple[Tree, Clipped]:
    """Returns the squared norms of each leaf, ``(batch,)``, and the clipped sum, of one chunk."""
    leaves, treedef = jax.tree.flatten(params)
    work = _Batch(plan, leaves, [*jax.tree.leaves(records), keys])
    parts = [work.contribution(leaf) for leaf in range(len(leaves))]
    squared = jax.tree.unflatten(treedef, [part.squared for part in parts])
    factors = jax.tree.leaves(clipping.factors(squared, clip_norm=clip_norm))
    if adding.is_exact and any(part.spread is not None for part in parts):
        spreads = [jnp.zeros_like(p.squared) if p.spread is None else p.spread for p in parts]
        others = clipping.factors(jax.tree.unflatten(treedef, spreads), clip_norm=clip_norm)
        factors = _smaller(factors, jax.tree.leaves(others))
    # Once, or every product below computes the weight of a record anew for each of its numbers.
    weights = materialised(
        {id(factor): jnp.where(mask, factor * adding.units, 0.0) for factor in factors}
    )
    sums = [
        part.total(weights[id(factor)], adding) for part, factor in zip(parts, factors, strict=True)
    ]
    counters = bounds.counters_of(squared, mask, clip_norm=clip_norm, adding=adding)
    sums.append(adding.total(counters))
    *total, counts = sums if adding.is_exact else [leaf[0] for leaf in sums]
    return squared, Clipped(jax.tree.unflatten(treedef, total), counts)


def lattice_of(plan: NormPlan, leaves: Tree, data: Tree) -> Lattice:
    """Returns the lattice on which a plan's sums are made.

    Blocks of one length that are bounded by the same norm have errors that add up record by record,
    so that their largest counts once; those of different lengths hold different records, and
    their errors add up in squares.

    Args:
      plan: of the loss.
      leaves: the parameters, or their shapes.
      data: a batch of one record, or its shapes.
    """
    found = ways(plan, leaves, data)
    errors: dict[tuple[int, bool], float] = {}
    for way in found:
        if way.positions is not None:
            group = (block_rows(way.positions), way.positions == 1)
            error = summing_error(way.positions, way.num_reads)
            errors[group] = max(errors.get(group, 0.0), error)
    return Lattice(
        rounding=math.sqrt(max(1.0, sum(way.rounding**2 for way in found))),
        summing=math.sqrt(sum(error**2 for error in errors.values())),
    )


def ways(plan: NormPlan, leaves: Tree, data: Tree) -> list[Way]:
    """Returns how each leaf is clipped and summed.

    Args:
      plan: of the loss.
      leaves: the parameters, or their shapes.
      data: a batch of one record, or its shapes.
    """
    return _ways_and_held(plan, leaves, data)[0]


def _ways_and_held(plan: NormPlan, leaves: Tree, data: Tree) -> tuple[list[Way], int]:
    """Returns also how many operands and cotangents are held for each record."""
    found: list[Way] = []

    def norms(leaves: list[Array], data: list[Array]) -> Tree:
        work = _Batch(plan, leaves, data)
        parts = [work.contribution(leaf) for leaf in range(len(leaves))]
        found.extend(part.way for part in parts)
        return [part.squared for part in parts], (work.saved, work.cotangents)

    _, held = jax.eval_shape(norms, leaves, data)
    return found, sum(leaf.size for leaf in jax.tree.leaves(held))


class _Batch:
    """One batch on its way through the plan: operands and cotangents of all sites."""

    def __init__(self, plan: NormPlan, leaves: list[Array], data: list[Array]) -> None:
        self.plan, self.leaves = plan, leaves
        program = plan.program
        self.fixed = program.fixed_part()
        self.values = program.parameter_part(leaves, self.fixed)
        self.saved, self.cotangents = jax.vmap(self._cotangents_of_one)(data)
        self.num_records = data[0].shape[0]
        self._formed: dict[Value, Array] = {}
        self._sums: dict[tuple[Value, int, int], Array] = {}

    def _cotangents_of_one(self, data: list[Array]) -> tuple[list[list[Array]], list[list[Array]]]:
        program = self.plan.program
        nudges = [
            [jnp.zeros(shape, dtype) for shape, dtype in shapes]
            for shapes in program.nudge_shapes()
        ]
        loss, pull, saved = jax.vjp(
            lambda nudges: program.record_part(self.values, data, nudges), nudges, has_aux=True
        )
        (cotangents,) = pull(jnp.ones_like(loss))
        for site in program.sites:
            if site.scope is not None:  # others are materialised where they arise
                cotangents[site.index] = materialised(cotangents[site.index])
        return saved, cotangents

    def contribution(self, leaf: int) -> Contribution:
        """Returns what the batch adds to the gradient of one leaf; the way depends on shapes."""
        reads, array = self.plan.reads[leaf], self.leaves[leaf]
        if not reads:
            return Unused(array.shape, self.num_records, array.dtype)
        names = sorted({site.name for value in reads for site, _ in self.plan.uses(value)})
        where = f"at {', '.join(names)}"
        if not self.plan.is_direct(leaf):
            joint = self._joint(leaf)
            if joint is not None:
                return self._joint_in_blocks(leaf, joint, f"joint Gram form {where}")
            words = f"formed {where}, then pulled back to the parameter"
            return Formed(self._pulled_back(leaf), lambda x: x, words, self._num_formed(leaf))
        return self._direct(leaf, reads[0], self.plan.paths[leaf][0], where)

    def _direct(self, leaf: int, value: Value, path: Path, where: str) -> Contribution:
        """A leaf that acts through one value, which is the leaf moved about or a function of it."""
        part, back = self._part(value), self._back(leaf, path)
        weight = None if path.map is Map.MOVED else self._derivative(leaf, value)
        is_weighted = path.map is Map.ELEMENTWISE
        prefix = "weighted " if is_weighted else ""
        shape = self.values[value].shape
        if part is None or part.needs_forming(is_weighted=is_weighted):
            how = "the size of its values" if part is None else "cheaper here than its rule"
            words = f"formed {where}, {how}"
            factor = self._sign(leaf, value) if weight is None else weight
            if isinstance(part, Dense) and weight is None:
                # Only the sum is brought into the order of the value: transposing the gradients of
                # all records takes a third of the time of a convolution's clipped sum.
                joined = part.joined() * factor
                in_order = functools.partial(part.out_of_joined, shape=shape)
                return Formed(joined, lambda x: back(in_order(x)), words, joined[0].size)
            formed = self._formed_for(value)
            return Formed(formed * factor, back, words, formed[0].size)
        words = f"{prefix}{part.description} {where}"
        if isinstance(part, Lookup):
            factor = jnp.broadcast_to(self._sign(leaf, value), shape) if weight is None else weight
            return LookedUp(part, factor, shape, back, words)
        factor = self._sign(leaf, value) if weight is None else weight
        return InBlocks(
            [Read(part, factor, not is_weighted)],
            part.squared_norm(weight if is_weighted else None),
            part.squared_spread() if part.num_positions > 1 else None,
            [self._summing(value, part, factor, back)],
            self.leaves[leaf].shape,
            words,
        )

    def _joint_in_blocks(self, leaf: int, reads: list[Read], words: str) -> InBlocks:
        """A leaf that is read as several functions of itself, all in one order."""
        values, paths = self.plan.reads[leaf], self.plan.paths[leaf]
        return InBlocks(
            reads,
            joint_squared_norm(reads),
            joint_squared_spread(reads),
            [
                self._summing(value, read.part, read.weight, self._back(leaf, path))
                for value, read, path in zip(values, reads, paths, strict=True)
            ],
            self.leaves[leaf].shape,
            words,
        )

    def _summing(
        self, value: Value, part: Dense, derivative: Array, back: Callable[[Array], Array]
    ) -> Callable[[Array, int], Array]:
        """Returns a function of weights: the sums of blocks of records in the order of the leaf."""
        shape = self.values[value].shape

        def sums(weights: Array, count: int) -> Array:
            # Leaves that act through one value share its sums.
            known = (value, id(weights), count)
            if known not in self._sums:
                found = part.block_sums(weights, count)
                self._sums[known] = part.in_shape_of_value(found, shape)
            return back(self._sums[known] * derivative)

        return sums

    def _joint(self, leaf: int) -> list[Read] | None:
        """Returns the parts of a leaf that is read as several functions of itself."""
        values, paths = self.plan.reads[leaf], self.plan.paths[leaf]
        is_aligned = len({path.order for path in paths}) == 1
        if len(values) < 2 or not is_aligned or any(path.map is Map.GENERAL for path in paths):
            return None
        reads = []
        for value, path in zip(values, paths, strict=True):
            part = self._part(value)
            if not isinstance(part, Dense):
                return None
            is_moved = path.map is Map.MOVED
            weight = self._sign(leaf, value) if is_moved else self._derivative(leaf, value)
            reads.append(Read(part, weight, path.map is not Map.ELEMENTWISE))
        positions = sum(read.part.num_positions for read in reads)
        return reads if prefers_joint(reads) and block_rows(positions) > 1 else None

    def _part(self, value: Value) -> Part | None:
        """Returns the sites of a value as one part that has a rule, or None."""
        merged, *others = (
            part_of(site, at, self.saved[site.index], self.cotangents[site.index])
            for site, at in self.plan.uses(value)
        )
        for part in others:
            if not (isinstance(merged, Dense) and isinstance(part, Dense)):
                return None
            merged = merged.merged(part)
        return merged

    def _formed_for(self, value: Value) -> Array:
        """Returns each record's gradient for a value, formed once."""
        if value not in self._formed:
            part = self._part(value)
            if isinstance(part, Dense):
                formed = part.formed(self.values[value].shape)
            else:
                uses = self.plan.uses(value)
                formed = functools.reduce(jnp.add, [self._site_gradient(*use) for use in uses])
            self._formed[value] = formed
        return self._formed[value]

    def _site_gradient(self, site: Site, at: int) -> Array:
        """Returns each record's gradient at one site, by the derivative of its operation."""

        def gradient(own: dict[int, Array], data: list[Array], cotangents: list[Array]) -> Array:
            _, pull = jax.vjp(lambda value: site.apply(own | {at: value}, data), own[at])
            return pull(cotangents)[0]

        own = {at: self.values[value] for at, value in site.values.items()}
        of_record = gradient
        if site.scope is not None:
            axes = {at: 0 if site.is_stacked[at] else None for at in own}
            of_record = jax.vmap(gradient, in_axes=(axes, 0, 0))
        of_batch = jax.vmap(of_record, in_axes=(None, 0, 0), axis_size=self.num_records)
        each = of_batch(own, self.saved[site.index], self.cotangents[site.index])
        if site.scope is None or site.is_stacked[at]:
            return each
        # Iterations lie outermost in memory, where XLA multiplies twenty times as fast as it adds.
        ones = jnp.ones(each.shape[1], each.dtype)
        return jnp.einsum("t,bt...->b...", ones, each, precision=lax.Precision.HIGHEST)

    def _pulled_back(self, leaf: int) -> Array:
        """Returns each record's gradient for a leaf, by way of all values that it acts through."""
        values = self.plan.reads[leaf]

        def part(array: Array) -> list[Array]:
            everything = self._parameter_part(leaf, array)
            return [everything[value] for value in values]

        _, pull = jax.vjp(part, self.leaves[leaf])
        formed = [self._formed_for(value) for value in values]
        return jax.vmap(lambda formed: pull(formed)[0])(formed)

    def _num_formed(self, leaf: int) -> int:
        values = self.plan.reads[leaf]
        return self.leaves[leaf].size + sum(self._formed[value][0].size for value in values)

    def _parameter_part(self, leaf: int, array: Array) -> dict[Value, Array]:
        leaves = [*self.leaves[:leaf], array, *self.leaves[leaf + 1 :]]
        return self.plan.program.parameter_part(leaves, self.fixed)

    def _derivative(self, leaf: int, value: Value) -> Array:
        """Returns d value / d leaf of an elementwise map, in the layout of the value."""
        return materialised(self._along_ones(leaf, value))  # norm and sum multiply by it

    def _sign(self, leaf: int, value: Value) -> Array:
        """Returns the derivative of a map that moves entries and changes all signs, or none."""
        return self._along_ones(leaf, value).reshape(-1)[0]

    def _along_ones(self, leaf: int, value: Value) -> Array:
        array = self.leaves[leaf]
        return jax.jvp(
            lambda array: self._parameter_part(leaf, array)[value],
            (array,),
            (jnp.ones_like(array),),
        )[1]

    def _back(self, leaf: int, path: Path) -> Callable[[Array], Array]:
        """Returns a function that brings arrays from the order of a value to that of the leaf.

        They have one axis before those of the value: blocks, or limbs.
        """
        shape = self.leaves[leaf].shape
        return jax.vmap(lambda array: path.back(array, shape))


def _smaller(factors: list[Array], others: list[Array]) -> list[Array]:
    """Returns the smaller of two factors of each leaf; leaves that share both share the result."""
    pairs = {(id(c), id(d)): (c, d) for c, d in zip(factors, others, strict=True)}
    smaller = {ids: jnp.minimum(c, d) for ids, (c, d) in pairs.items()}
    return [smaller[id(c), id(d)] for c, d in zip(factors, others, strict=True)]
