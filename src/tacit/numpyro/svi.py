"""Private stochastic variational inference with the interface of `numpyro.infer.SVI`."""

import contextlib
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax.numpy as jnp
from numpyro.infer import Trace_ELBO
from numpyro.infer.svi import SVIRunResult

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.chains import ProgressBar
from tacit.models.programs.arguments import Arguments, signature_of, split_arguments
from tacit.models.programs.program import require_private_guide
from tacit.numpyro.correction import correction_of
from tacit.numpyro.method import DPSVIState, PrivateLoss
from tacit.numpyro.posterior import ProgramPosterior
from tacit.numpyro.program import PreparedProgram, prepared_program
from tacit.numpyro.progress import Counter, evaluated_loss, run_steps, statement_of, take_step
from tacit.numpyro.settings import (
    PrivacySettings,
    as_numpyro_optimiser,
    given_once,
    is_traced,
    num_particles_of,
    require_reverse_mode,
    takes,
)
from tacit.privacy.accounting import Accountant
from tacit.privacy.accounting.accountants import DEFAULT_ACCOUNTANT
from tacit.privacy.budget import Ledger
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.clipping.gradient import ClippingReport
from tacit.privacy.sampling import Sampling
from tacit.privacy.statement import Statement
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["DPSVI"]


class DPSVI:
    """Private stochastic variational inference for a NumPyro model and guide.

    It has the interface of `numpyro.infer.SVI`: `init`, `update`, `stable_update`, `get_params`,
    `evaluate` and `run`, with the same arguments and shapes. What changes:

    * Programs are called with the whole table, and batches are drawn inside. (Or with batches of
      the user's own, after ``num_obs_total`` was given.)
    * Each record's gradient is clipped, and noise is added to their sum. Prior and entropy of what
      all records share are outside the clip, exact.
    * The loss is NaN, unless `PrivateLoss` asks for a private one.
    * The first call fixes the program: what model and guide read from outside, and public
      arguments, are those of that call. Later runs compile nothing.

    There are two ways to say how much noise: ``epsilon``, ``delta`` and ``num_steps``, from which
    it is found at the first call; or ``noise_multiplier``. The names that d3p has for the same
    things, ``clipping_threshold``, ``dp_scale`` and ``num_obs_total``, are understood.

    Guarantee:
      Parameters, states (but for their ``private_key``), losses and what is computed from them
      depend on the records only through releases of the engine, which `statement` counts. Noise
      and batches come from keys of the operating system, not from ``rng_key``. Steps beyond the
      budget are refused before a record is read; inside compiled code, where nothing can be
      raised, they change nothing. Where the program is called with the user's own batches, the
      guarantee is as good as what the user states of how they are drawn, and the statement says so.

    Args:
      model: a NumPyro model with its records in one plate; `tacit.explain_program` shows how it
        is taken apart.
      guide: an autoguide, or a function with the model's arguments.
      optim: of `numpyro.optim` or optax.
      loss: `numpyro.infer.Trace_ELBO`, with any number of particles.
      clip_norm: the largest gradient norm of one record's part of the loss; a public number.
      epsilon: the largest epsilon; infinity promises nothing.
      delta: by default the smaller of 1e-5 and a tenth of one over the number of records.
      num_steps: how many steps are declared, for which the budget is; by default those of the
        first `run`. Statements are of all of them, so that one may stop earlier by any rule.
      batch_size: the expected size of Poisson batches; by default every step sees every record.
      noise_multiplier: noise standard deviation divided by ``clip_norm``; 0 is not private.
      sampling: `PoissonBatch`, `FixedBatch` or `FullBatch`, instead of ``batch_size``. With the
        user's own batches it states how they are drawn; without it, they are not amplified. Of a
        `PoissonBatch` the capacity is part of what is stated; where each record is drawn by its own
        coin and a batch may have any size, state ``max_batch_size=num_records``.
      clipping_threshold: d3p's name for ``clip_norm``.
      dp_scale: d3p's name for ``noise_multiplier``.
      num_obs_total: how many records there are, if the program is called with batches. It is
        passed on to programs that have an argument of this name.
      loss_release: asks for private losses.
      plate: the name of the record plate; found where it is not given.
      public: names of arguments that hold no private value.
      accountant: turns costs into epsilon.
      clipping: the rule that enforces the bound.
      ledger: is charged before each chunk of a run and each step outside compiled code.
      seed: for tests and examples only: replaces the keys of the operating system by a known one
        and marks the statement INSECURE.
      **static_kwargs: passed to model and guide in every call, as in NumPyro.

    Example:
      >>> import warnings
      >>> import jax
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> from numpyro.infer.autoguide import AutoNormal
      >>> from tacit import PrivacyWarning
      >>> def model(heights):
      ...     mean = numpyro.sample("mean", dist.Normal(1.5, 0.5))
      ...     with numpyro.plate("people", heights.shape[0]):
      ...         numpyro.sample("height", dist.Normal(mean, 0.1), obs=heights)
      >>> svi = DPSVI(
      ...     model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO(),
      ...     epsilon=1.0, delta=1e-6, clip_norm=10.0, seed=0)
      >>> heights = jnp.linspace(1.6, 1.9, 1000)
      >>> with warnings.catch_warnings():
      ...     warnings.simplefilter("ignore", PrivacyWarning)
      ...     result = svi.run(jax.random.key(0), 200, heights, progress_bar=False)
      >>> f"{result.params['mean_auto_loc']:.1f}", svi.statement(result.state).epsilon_text
      ('1.8', '1.000 INSECURE')

    Reference:
      Jälkö et al., "Differentially private variational inference for non-conjugate models" (2017);
      Prediger et al., "d3p" (2022), whose call shape is kept and whose accounting is not.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: Any = None,
        *,
        clip_norm: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        num_steps: int | None = None,
        batch_size: float | None = None,
        noise_multiplier: float | None = None,
        sampling: Sampling | None = None,
        clipping_threshold: float | None = None,
        dp_scale: float | None = None,
        num_obs_total: int | None = None,
        loss_release: PrivateLoss | None = None,
        plate: str | None = None,
        public: Collection[str] = (),
        accountant: Accountant = DEFAULT_ACCOUNTANT,
        clipping: Clipping | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        **static_kwargs: Any,
    ) -> None:
        require_private_guide(guide)
        self.model, self.guide = model, guide
        self.loss = Trace_ELBO() if loss is None else loss
        self.optim = as_numpyro_optimiser(optim)
        settings = PrivacySettings(
            clip_norm=given_once("clip_norm", clip_norm, "clipping_threshold", clipping_threshold),
            noise_multiplier=given_once("noise_multiplier", noise_multiplier, "dp_scale", dp_scale),
            epsilon=epsilon,
            delta=delta,
            num_steps=num_steps,
            batch_size=batch_size,
            sampling=sampling,
            num_obs_total=num_obs_total,
            accountant=accountant,
            clipping=Flat() if clipping is None else clipping,
        )
        self.static_kwargs = static_kwargs
        if num_obs_total is not None and takes(model, "num_obs_total"):
            self.static_kwargs = {"num_obs_total": num_obs_total} | static_kwargs
        self._prepare = functools.partial(
            prepared_program,
            model,
            guide,
            settings=settings,
            optim=self.optim,
            loss=loss_release,
            plate=plate,
            num_particles=num_particles_of(self.loss),
            seed=seed,
        )
        self._public, self._ledger = public, ledger
        self._prepared: PreparedProgram | None = None
        self._counter = Counter(ledger=ledger, loss=loss_release, is_seeded=seed is not None)

    # ---- The interface of numpyro.infer.SVI ----

    def init(
        self, rng_key: Key, *args: Any, init_params: Params | None = None, **kwargs: Any
    ) -> DPSVIState:
        """Returns the first state, which depends on the records through their shapes only.

        Their values are looked at only where a program closes over an array as long as the table,
        to refuse it if it is the table.

        Args:
          rng_key: of the first parameters and of the guide's draws; need not be secret.
          *args: arguments of the model.
          init_params: values of parameters to start with. They must not come from the records,
            or be paid for elsewhere.
          **kwargs: keyword arguments of the model.
        """
        arguments = self._arguments(args, kwargs)
        state = self._init(rng_key, arguments, init_params, None)
        prepared = self._require_prepared()
        prepared.require_no_table(state, prepared.records_of(arguments))
        return state

    def get_params(self, svi_state: DPSVIState) -> Params:
        """Returns the parameters in their own spaces."""
        unconstrained = self.optim.get_params(svi_state.optim_state)
        return self._require_prepared().program.constrain(unconstrained)

    def update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        mask: Array | None = None,
        **kwargs: Any,
    ) -> tuple[DPSVIState, Scalar]:
        """Takes one step: one release.

        Args:
          svi_state: the state; not to be used again afterwards.
          *args: arguments of the model.
          forward_mode_differentiation: only False.
          mask: for the user's own batches: False for rows that are padding.
          **kwargs: keyword arguments of the model.

        Returns:
          The next state, and the loss: NaN unless a private one was asked for.
        """
        require_reverse_mode(forward_mode_differentiation)
        self._counter.warn_unless(self._require_prepared().resolved.method.has_losses)
        prepared, batch = self._require_prepared(), self._batch(args, kwargs, mask)
        return take_step(prepared, self._counter, svi_state, *batch, skip_non_finite=False)

    def stable_update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        mask: Array | None = None,
        **kwargs: Any,
    ) -> tuple[DPSVIState, Scalar]:
        """Takes one step, or stays where the released gradient is not finite; paid all the same."""
        require_reverse_mode(forward_mode_differentiation)
        self._counter.warn_unless(self._require_prepared().resolved.method.has_losses)
        prepared, batch = self._require_prepared(), self._batch(args, kwargs, mask)
        return take_step(prepared, self._counter, svi_state, *batch, skip_non_finite=True)

    def evaluate(
        self, svi_state: DPSVIState, *args: Any, mask: Array | None = None, **kwargs: Any
    ) -> Scalar:
        """Returns the loss on the records, privately; NaN unless evaluations were paid for.

        For public records use ``Trace_ELBO().loss(key, params, model, guide, ...)``, which is free.
        """
        prepared = self._require_prepared()
        records, mask = self._batch(args, kwargs, mask)
        if not is_traced(svi_state):
            prepared.require_own(svi_state)
        if not prepared.resolved.method.has_evaluations:
            self._counter.warn_unless(False)
            return jnp.full((), jnp.nan)
        return evaluated_loss(prepared, self._counter, svi_state, records, mask)

    def run(
        self,
        rng_key: Key,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: DPSVIState | None = None,
        init_params: Params | None = None,
        **kwargs: Any,
    ) -> SVIRunResult:
        """Takes many steps on a table in one compiled program.

        Guarantee:
          Raises `BudgetExceededError` before any record is read where the steps, with those made
          before, would exceed the budget. Each call draws a fresh key.

        Args:
          rng_key: of the first parameters and of the guide's draws; need not be secret.
          num_steps: how many steps.
          *args: arguments of the model, with the whole table.
          progress_bar: shows steps and epsilon.
          stable_update: takes steps as `stable_update` does.
          forward_mode_differentiation: only False.
          init_state: goes on from there.
          init_params: values of parameters to start with, if there is no ``init_state``.
          **kwargs: keyword arguments of the model.

        Returns:
          Parameters, the last state, and the losses of all steps.
        """
        _check.positive_integer(num_steps=num_steps)
        require_reverse_mode(forward_mode_differentiation)
        arguments = self._arguments(args, kwargs)
        state = init_state
        if state is None:
            state = self._init(rng_key, arguments, init_params, num_steps)
        prepared = self._require_prepared()
        if not prepared.resolved.is_table:
            raise InvalidArgumentError(
                f"run must be given all {prepared.resolved.method.num_records} records: it would"
                " show the same batch at every step. Call update with each of your batches."
            )
        prepared.require_own(state)
        prepared.require_steps(int(state.step), num_steps)
        records = prepared.records_of(arguments)
        self._counter.note_steps(prepared, int(state.step), num_steps)
        self._counter.warn_unless(prepared.resolved.method.has_losses)
        with ProgressBar("DPSVI") if progress_bar else contextlib.nullcontext() as progress:
            state, losses, self._counter.run_id = run_steps(
                prepared,
                state,
                num_steps,
                records,
                skip_non_finite=stable_update,
                ledger=self._ledger,
                run_id=self._counter.run_id,
                progress=progress,
            )
        return SVIRunResult(self.get_params(state), state, losses)

    # ---- What SVI does not have ----

    def statement(self, svi_state: DPSVIState) -> Statement:
        """Returns the privacy statement of the steps that led to a state.

        Guarantee:
          It holds whatever made somebody stop here, also a look at earlier states. Up to the number
          of steps that was declared (``num_steps``, or the first `run` from the start) it states
          what all of them cost, however few were made. Where none was declared, or more were
          made, it states what holds wherever one stops (`tacit.privacy.stopping.AnytimeRDP`),
          which is about a fourth larger than what a declaration would have cost.

        All evaluations that were asked for are counted in it, whether made or not.
        """
        return statement_of(
            self._require_prepared(), svi_state, is_charged=self._ledger is not None
        )

    def epsilon(self, svi_state: DPSVIState) -> float:
        """Returns the epsilon of `statement`, at the delta of the settings."""
        return self.statement(svi_state).epsilon

    def explain_clipping(self) -> ClippingReport:
        """Returns what gradients are released with respect to, and how each part is clipped.

        `init` or `run` must have been called; no record is read.
        """
        return self._require_prepared().explain_clipping()

    def posterior(self, svi_state: DPSVIState) -> ProgramPosterior:
        """Returns what may be published: averaged parameters, corrected draws and the statement."""
        prepared = self._require_prepared()
        release = prepared.resolved.method.release
        correction = correction_of(prepared.program, release, svi_state.evidence)
        return ProgramPosterior(
            model=self.model,
            guide=self.guide,
            params=prepared.program.constrain(svi_state.average),
            statement=self.statement(svi_state).to_json(),
            corrected=correction.draws,
            intervals=correction.intervals,
        )

    # ---- How it is done ----

    def _init(
        self, rng_key: Key, arguments: Arguments, init_params: Params | None, num_steps: int | None
    ) -> DPSVIState:
        if is_traced((rng_key, arguments.build(arguments.records))):
            raise InvalidArgumentError(
                "init must be called outside jit: it draws the key of the noise, which compiled"
                " code would use again at every call."
            )
        if self._prepared is None:
            self._prepared = self._prepare(arguments, num_steps=num_steps)
        self._prepared.records_of(arguments)
        return self._prepared.first_state(rng_key, init_params, num_steps)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        return split_arguments(
            args,
            {**kwargs, **self.static_kwargs},
            public=self._public,
            signature=signature_of(self.model),
        )

    def _batch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], mask: Array | None
    ) -> tuple[list[Array], Array | None]:
        """The records of a call, and for a batch which of them are no padding."""
        prepared = self._require_prepared()
        if mask is not None and prepared.resolved.is_table and takes(self.model, "mask"):
            kwargs, mask = kwargs | {"mask": mask}, None
        return prepared.batch_of(self._arguments(args, kwargs), mask)

    def _require_prepared(self) -> PreparedProgram:
        if self._prepared is None:
            raise InvalidArgumentError("init or run must be called first.")
        return self._prepared
