"""The split: the objective of a program as a part without records and a term for each record."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.distributions.transforms import biject_to
from numpyro.infer.util import transform_fn

from tacit import _check
from tacit.models.programs.alignment import SharedLatents, alignment_of
from tacit.models.programs.analysis import analyse_program
from tacit.models.programs.arguments import Arguments, signature_of, split_arguments
from tacit.models.programs.program import GuidedProgram, ProgramRun, initial_params
from tacit.models.programs.sites import Alignment, ProgramReport, ProgramSite, aligned_sites
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["SplitProgram", "explain_program", "split_program"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitProgram:
    """A model and a guide, split by what may see a record. It holds no record.

        ELBO = shared_term + sum over records of record_term

    Draws and densities are those of NumPyro's ``Trace_ELBO``. A latent that the guide leaves out is
    drawn from its prior and its log prior is counted, as there; so where that prior's own scale is
    learnt, the objective favours small scales, and the latent had better be in the guide.

    Attributes:
      program: what was split.
      sites: what each site is and how it is treated.
      num_particles: how many draws of the latents are averaged.
      is_checked: whether the split could be compared with NumPyro's density, on made-up records.
      blank: one made-up record, on which what has no record in it is run.
      transforms: from unconstrained to constrained parameters.
      alignment: what gradients are released with respect to.
      latents: what records see, where that is a draw of shared latents alone; else None.
    """

    program: GuidedProgram
    sites: tuple[ProgramSite, ...]
    num_particles: int
    is_checked: bool
    blank: Sequence[Array]
    transforms: Mapping[str, Any]
    alignment: Alignment
    latents: SharedLatents | None

    @property
    def is_fixed(self) -> bool:
        """Whether its functions are, for good, what they were when it was split."""
        return True

    @property
    def plate(self) -> str:
        """The name of the record plate."""
        return self.program.plate

    @property
    def plate_size(self) -> int:
        """The size that the model declares for it, when it is called with all records."""
        return self.program.size

    def init(self, key: Key) -> Params:
        """Returns the unconstrained parameters with which ``SVI.init(key, ...)`` starts.

        No record is read: the program runs on a blank one.
        """
        _, model_seed, guide_seed = jax.random.split(key, 3)
        values, _ = initial_params(self.program, model_seed, guide_seed, self.blank)
        # Python's numbers have weak types, which would compile every step twice.
        return {
            name: jax.tree.map(
                lambda leaf: lax.convert_element_type(leaf, jnp.result_type(leaf)),
                self.transforms[name].inv(value),
            )
            for name, value in values.items()
        }

    def constrain(self, params: Params) -> dict[str, Any]:
        """Returns the parameters in their own spaces, as ``SVI.get_params`` does."""
        constrained: dict[str, Any] = transform_fn(self.transforms, params)
        return constrained

    def shared_term(self, params: Params, shared_key: Key) -> Scalar:
        """Returns log prior less log guide of what all records share; no record is in it."""

        def term(run: ProgramRun) -> Scalar:
            return run.difference(lambda site: not self.program.is_of_records(site))

        # As an argument the blank record is traced: nobody can stumble over its values.
        @jax.jit
        def on_blank(params: Params, blank: Sequence[Array]) -> Scalar:
            return self._over_particles(params, shared_key, blank, jax.random.key(0), term)

        return on_blank(params, self.blank)

    def record_term(
        self, params: Params, shared_key: Key, record: Sequence[Array], record_key: Key
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

        def term(run: ProgramRun) -> Scalar:
            return run.difference(self.program.is_of_records)

        return self._over_particles(params, shared_key, rows, record_key, term)

    def draws(self, params: Params, shared_key: Key) -> list[dict[str, Array]]:
        """Returns what records see, unconstrained: a draw of shared latents for each particle.

        Args:
          params: the unconstrained parameters.
          shared_key: of the step.
        """
        assert self.latents is not None
        constrained = self.constrain(params)
        return [self.latents.draw(constrained, key) for key in self._particles(shared_key)]

    def seen_term(
        self,
        draws: Sequence[Mapping[str, Array]],
        shared_key: Key,
        record: Sequence[Array],
        record_key: Key,
    ) -> Scalar:
        """Returns the same as `record_term`, as a function of what `draws` returns."""
        assert self.latents is not None
        rows = [leaf[None] for leaf in record]
        particles = zip(
            draws, self._particles(shared_key), self._particles(record_key), strict=True
        )
        # A list and not a mapped axis: then the clip sees each draw's weights as such.
        terms = [self.latents.log_density(draw, key, rows, own) for draw, key, own in particles]
        return terms[0] if len(terms) == 1 else jnp.mean(jnp.stack(terms))

    def _particles(self, key: Key) -> list[Key]:
        if self.num_particles == 1:
            return [key]
        return list(jax.random.split(key, self.num_particles))

    def _over_particles(
        self,
        params: Params,
        shared_key: Key,
        rows: Sequence[Array],
        record_key: Key,
        term: Callable[[ProgramRun], Scalar],
    ) -> Scalar:
        constrained = self.constrain(params)
        particles = zip(self._particles(shared_key), self._particles(record_key), strict=True)
        # A list and not a mapped axis: then the clip sees each draw's weights as such.
        terms = [term(self.program.run(constrained, key, rows, own)) for key, own in particles]
        return terms[0] if len(terms) == 1 else jnp.mean(jnp.stack(terms))


def split_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    plate: str | None = None,
    num_particles: int = 1,
) -> SplitProgram:
    """Takes a model and its guide apart into what may see a record and what may not.

    Only shapes and dtypes of the records are read, and nothing of them is kept. An autoguide is set
    up on a blank record, as ``SVI.init`` would set it up on the first batch.

    Args:
      model: a NumPyro model with its records in one plate.
      guide: a hand-written guide or an autoguide, called as the model is.
      arguments: what they are called with.
      plate: the name of the record plate; found where it is not given.
      num_particles: how many draws of the latents are averaged.

    Raises:
      InvalidArgumentError: if the program cannot be split; the message names the site and the
        remedy.

    Example:
      >>> import numpyro
      >>> from tacit.models.programs.arguments import split_arguments
      >>> import numpyro.distributions as dist
      >>> def model(x):
      ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
      ...     with numpyro.plate("records", x.shape[0]):
      ...         numpyro.sample("x", dist.Normal(mean, 1), obs=x)
      >>> guide = numpyro.infer.autoguide.AutoDelta(model)
      >>> split = split_program(model, guide, split_arguments((jnp.arange(5.0),), {}))
      >>> for site in split.sites:
      ...     print(site.name, "-", site.role, "-", site.treatment)
      mean - shared latent - outside the clip, exact
      x - observation - inside the clip
      mean_auto_loc - parameter - optimised
      >>> params, key = {"mean_auto_loc": jnp.zeros(())}, jax.random.key(0)
      >>> float(split.shared_term(params, key) + 0.5 * jnp.log(2 * jnp.pi))
      0.0
    """
    _check.positive_integer(num_particles=num_particles)
    found = analyse_program(model, guide, arguments, plate=plate)
    alignment, latents = alignment_of(found)
    assert alignment is not None
    return SplitProgram(
        program=found.program,
        sites=aligned_sites(found.sites, alignment),
        num_particles=num_particles,
        is_checked=found.is_checked,
        blank=found.blank,
        transforms={name: biject_to(bound) for name, bound in found.constraints.items()},
        alignment=alignment,
        latents=latents,
    )


def explain_program(
    model: Callable[..., Any],
    *args: Any,
    guide: Callable[..., Any] | None = None,
    plate: str | None = None,
    public: Collection[str] = (),
    **kwargs: Any,
) -> ProgramReport:
    """Returns what each site of a program is, how a private method treats it, and why.

    No value of a record is read. Other keyword arguments are the program's own.

    Args:
      model: a NumPyro model.
      *args: what it is called with.
      guide: its guide, if there is one already.
      plate: the name of the record plate; found where it is not given.
      public: names of arguments that hold no private value.

    Raises:
      InvalidArgumentError: if the program cannot be split; the message names the site and the
        remedy.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> def model(x):
      ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
      ...     with numpyro.plate("records", x.shape[0]):
      ...         numpyro.sample("x", dist.Normal(mean, 1), obs=x)
      >>> print(explain_program(model, jnp.arange(5.0)))
      5 records in the plate 'records', from the arguments x; all other arguments are public ...
      site  what it is     shape   treatment                why
      mean  shared latent  scalar  outside the clip, exact  all records share it
      x     observation    1       inside the clip          it belongs to a record of the plate ...
      On made-up records, shared part and record terms add up to NumPyro's density.
    """
    arguments = split_arguments(args, kwargs, public=public, signature=signature_of(model))
    found = analyse_program(model, guide, arguments, plate=plate)
    alignment, _ = alignment_of(found)
    return ProgramReport(
        plate=found.program.plate,
        num_records=arguments.num_records,
        private=arguments.names,
        sites=aligned_sites(found.sites, alignment),
        is_checked=found.is_checked,
        alignment=alignment,
    )
