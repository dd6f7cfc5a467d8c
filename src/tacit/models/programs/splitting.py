"""Splitting: a program's objective as a part without records and a term for each record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer.util import transform_fn

from tacit import _check
from tacit.models.programs.arguments import Arguments
from tacit.models.programs.blanks import blank_records, row_shapes
from tacit.models.programs.plates import find_program
from tacit.models.programs.running import Program, Run
from tacit.models.programs.sites import Site, describe_sites
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["SplitProgram", "split_program"]


@dataclass(frozen=True, kw_only=True)
class SplitProgram:
    """A model and a guide, split by what may see a record. It holds no record.

        ELBO = shared_term + sum over records of record_term

    Attributes:
      program: what was split.
      sites: what each site is and how it is treated.
      num_particles: how many draws of the latents are averaged.
    """

    program: Program
    sites: tuple[Site, ...]
    num_particles: int
    _blank: list[Array]
    _transforms: Mapping[str, Any]

    @property
    def plate(self) -> str:
        """The name of the record plate."""
        return self.program.plate

    def init(self, key: Key) -> Params:
        """Returns the unconstrained parameters with which ``SVI.init(key, ...)`` starts.

        No record is read: the program runs on a blank one.
        """
        _, model_seed, guide_seed = jax.random.split(key, 3)
        values = _initial_params(self.program, model_seed, guide_seed, self._blank)[0]
        return {
            name: jax.tree.map(
                lambda leaf: lax.convert_element_type(leaf, jnp.result_type(leaf)),
                self._transforms[name].inv(value),
            )
            for name, value in values.items()
        }

    def constrain(self, params: Params) -> dict[str, Any]:
        """Returns the parameters in their own spaces, as ``SVI.get_params`` does."""
        constrained: dict[str, Any] = transform_fn(self._transforms, params)
        return constrained

    def shared_term(self, params: Params, shared_key: Key) -> Scalar:
        """Returns log prior less log guide of what all records share; no record is in it."""

        def term(run: Run) -> Scalar:
            return run.difference(lambda site: not self.program.is_of_records(site))

        return self._over_particles(params, shared_key, self._blank, jax.random.key(0), term)

    def record_term(
        self, params: Params, shared_key: Key, record: list[Array], record_key: Key
    ) -> Scalar:
        """Returns what ONE record adds to the objective, without the plate's scale.

        That is its log likelihood and, where it has latents of its own, their log prior less
        their log guide.

        Args:
          params: the unconstrained parameters.
          shared_key: of the step; the shared latents come from it, the same for all records.
          record: one row of each array of the records.
          record_key: the record's own key, from which its own latents come.
        """
        rows = [leaf[None] for leaf in record]

        def term(run: Run) -> Scalar:
            return run.difference(self.program.is_of_records)

        return self._over_particles(params, shared_key, rows, record_key, term)

    def _over_particles(
        self,
        params: Params,
        shared_key: Key,
        rows: list[Array],
        record_key: Key,
        term: Callable[[Run], Scalar],
    ) -> Scalar:
        constrained = self.constrain(params)
        if self.num_particles == 1:
            return term(self.program.run(constrained, shared_key, rows, record_key))
        keys = jax.random.split(shared_key, self.num_particles)
        own = jax.random.split(record_key, self.num_particles)
        # A list and not a mapped axis: then the clip sees each draw's weights as such.
        terms = [
            term(self.program.run(constrained, keys[at], rows, own[at]))
            for at in range(self.num_particles)
        ]
        return jnp.mean(jnp.stack(terms))


def split_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    plate: str | None = None,
    num_particles: int = 1,
) -> SplitProgram:
    """Takes a model and its guide apart into what may see a record and what may not.

    Only shapes and dtypes of the records are read, and nothing of them is kept.

    Args:
      model: a NumPyro model with its records in one plate.
      guide: a hand-written guide or an autoguide, called as the model is.
      arguments: what they are called with.
      plate: the name of the record plate; found where it is not given.
      num_particles: how many draws of the latents are averaged.

    Raises:
      InvalidArgumentError: if the program cannot be split; the message names the site and the
        remedy.
    """
    _check.positive_integer(num_particles=num_particles)
    shapes = row_shapes(arguments.records, arguments.num_records)
    program = find_program(model, guide, arguments.build, shapes, plate=plate)
    blank = blank_records(row_shapes(shapes, 1))
    values, found = _initial_params(program, *jax.random.split(jax.random.key(0)), blank)
    transforms = {name: biject_to(constraint) for name, constraint in found.items()}
    run = program.run(values, jax.random.key(0), blank, jax.random.key(0))
    return SplitProgram(
        program=program,
        sites=describe_sites(program, run),
        num_particles=num_particles,
        _blank=blank,
        _transforms=transforms,
    )


def _initial_params(
    program: Program, model_seed: Key, guide_seed: Key, blank: list[Array]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values with which parameters start, and their constraints, by NumPyro's own rules."""
    args, kwargs = program.build(blank)
    guide, model = program.with_rows(1, None)
    guide_sites = trace(seed(guide, guide_seed)).get_trace(*args, **kwargs)
    of_guide = {
        name: site["value"] for name, site in guide_sites.items() if site["type"] == "param"
    }
    started = substitute(replay(seed(model, model_seed), guide_sites), of_guide)
    model_sites = trace(started).get_trace(*args, **kwargs)
    values, found = {}, {}
    for name, site in [*model_sites.items(), *guide_sites.items()]:
        if site["type"] == "param":
            values[name] = site["value"]
            found[name] = site["kwargs"].get("constraint", constraints.real)
    return values, found


_ = partial
