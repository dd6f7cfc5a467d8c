"""HMC that starts from a private fit, in coordinates in which that fit is standard normal."""

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError, UtilityWarning
from tacit.inference.chains import OnProgress
from tacit.inference.clip_norm import synthetic_records
from tacit.inference.fit import Fit, fit
from tacit.inference.hmc import HMC
from tacit.inference.laplace import Laplace
from tacit.inference.method import Method, objective_of
from tacit.inference.phases import seed_of_phase
from tacit.inference.plan import Plan, calibrate
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.cost import Cost
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian, FullGaussian
from tacit.tables.base import Table
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["Coordinates", "WarmHMC", "fit_hmc"]

_START_STEPS = 10
_LONGEST_PATH = 1.0
"""In radians of the circles on which a standard normal moves; a quarter turn forgets the start."""

_LEAPFROG = 0.2
"""The longest step: frequencies are one in these coordinates, and steps are free but for time."""

_SHORT_PATH, _NUM_PATHS = 0.3, 32
"""Of what clip norms are taken from: the rise of a loss per distance hardly depends on the path."""

_LEAST_MOVED = 1.0
"""Independent draws: a chain that moved less is still nearer to its start than to another draw."""


@dataclass(frozen=True, kw_only=True)
class WarmHMC:
    """HMC chains from draws of a private start; public settings, without any noise yet.

    On simulated logistic regressions (``python -m examples.warm_hmc``) gradients that are released
    along a trajectory add more noise than they guide. So trajectories follow the start's Gaussian,
    and the budget of the chains goes into the acceptance ratio alone. How far accepted proposals go
    in all then depends on that budget, and not on how many chains and proposals share it: the
    penalty grows with the square of a path. Many chains keep the spread of the start, few move
    farther each.

    Args:
      num_records: of the table that will be fitted.
      start: the private fit that chains start from, by `Laplace`, or by `VI` or `IVON` with
        independent weights. Its noise is calibrated. None is ten steps of `Laplace`.
      start_share: the share of epsilon and delta that the start alone may cost.
      num_chains: independent chains, each from its own draw of the start; each is paid for.
      num_proposals: of each chain, of which the first half is not retained.
      penalty: the variance of a proposal's noisy log ratio that paths are made for. Half of it is
        taken off the log ratio, so about ``2 Phi(-sqrt(penalty) / 2)`` of all proposals are
        accepted: a third, for 4.
      quantile: the share of synthetic records whose ratio is not clipped. Clipped ratios move the
        chains, so nearly all must fit.
      chunk_size: how many records are looked at together; memory only.
    """

    num_records: int
    start: Plan | None = None
    start_share: float = 0.5
    num_chains: int = 32
    num_proposals: int = 20
    penalty: float = 4.0
    quantile: float = 0.999
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        _check.positive_integer(
            num_records=self.num_records,
            num_chains=self.num_chains,
            num_proposals=self.num_proposals,
        )
        _check.fraction(one=False, start_share=self.start_share, quantile=self.quantile)
        _check.positive(penalty=self.penalty)
        if self.start is not None and self.start.method.num_records != self.num_records:
            raise InvalidArgumentError(
                "start.method must be configured for num_records="
                f"{self.num_records}; got {self.start.method.num_records}."
            )

    def plans(self, model: Model, inputs: Input, budget: Budget) -> tuple[Plan, Plan]:
        """Returns the plans of start and chains, with the smallest noise that the budget allows.

        Clip norm and step size of the chains are not known yet: they come from the start's release,
        and change no cost.

        Guarantee:
          No private record is involved. The cost of the second plan is that of both, and within
          the budget.

        Args:
          model: what will be fitted.
          inputs: public or made-up inputs, never private ones.
          budget: for start and chains together.
        """
        start = self.start or self._laplace(model, inputs, is_private=math.isfinite(budget.epsilon))
        sampler = start.method.build(model).sampler
        if not isinstance(sampler, FullGaussian | DiagonalGaussian):
            raise InvalidArgumentError(
                "start.method must give a Gaussian with all correlations or with none; got"
                f" {type(start.method).__name__}, whose states are {type(sampler).__name__}. Use"
                " Laplace, or VI with MeanField."
            )
        ratio = _engine(self.num_records, 1.0, budget, self.chunk_size)
        chains = Plan(
            method=HMC(gradient=None, ratio=ratio, step_size=_LEAPFROG, num_leapfrog=1),
            num_steps=self.num_proposals,
            num_chains=self.num_chains,
            burn_in=self.num_proposals // 2,
            thinning=1,
            tuning=start.tuning,
        )
        if math.isinf(budget.epsilon):
            return start, _after(chains, start)
        share = replace(
            budget, epsilon=self.start_share * budget.epsilon, delta=self.start_share * budget.delta
        )
        share.require(start.spent)
        start = calibrate(start, share)
        return start, calibrate(_after(chains, start), budget)

    def _laplace(self, model: Model, inputs: Input, *, is_private: bool) -> Plan:
        sampling = FullBatch(num_records=self.num_records)
        if not is_private:
            return Plan(method=Laplace.non_private(sampling=sampling), num_steps=_START_STEPS)
        clip_norm = Laplace.clip_norm_for(model, synthetic_records(model, inputs))
        release = GaussianSum(sampling=sampling, clip_norm=clip_norm, noise_multiplier=1.0)
        return Plan(method=Laplace(release=release), num_steps=_START_STEPS)


def fit_hmc(
    settings: WarmHMC,
    model: Model,
    records: Record | Table,
    *,
    inputs: Input,
    budget: Budget,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: OnProgress | None = None,
) -> Fit:
    """Runs HMC from a private start, within one budget for both.

    The start is released first. It says where the posterior is and how wide: ``w = mean + L z``
    with its covariance ``L L^T`` makes the posterior of ``z`` nearly standard normal. Chains begin
    at draws of it and follow its trajectories, which cost nothing. Clip norm and length of
    the paths are those at which proposals are accepted in spite of the noise: with a small budget
    paths are short. Where the chains cannot move as far as one independent draw, the posterior has
    a caveat that says so, and a `tacit.errors.UtilityWarning` is given: its draws are then nearly
    those of the start, for which the whole budget would have been better spent.

    Guarantee:
      The result depends on the records only through the releases that the statement counts: those
      of the start and of all chains. All noise is calibrated to the budget, and both phases
      are asked of the ledger, before a record is read; each is charged as it is made.

    Args:
      settings: what to run, or what `WarmHMC` says by default.
      model: what to infer.
      records: the table, as `tacit.fit` takes it.
      inputs: public or made-up inputs in the range of the records', one row for each, never
        private ones. Clip norms come from them.
      budget: what may be spent.
      seed: for tests and examples only; marks the statement INSECURE.
      ledger: is asked for all of it first.
      progress: is told steps and epsilon, of one phase after the other.

    Returns:
      The chains' fit. Its posterior has the model's own parameters. Its checkpoint lies in
      the coordinates of the start and is none to resume from: a run that was interrupted
      has paid for what it released, and begins anew.

    Example:
      >>> import tacit
      >>> from tacit.models import MLP, Bernoulli, GaussianPrior
      >>> model = tacit.bayesian(MLP(num_inputs=2, num_outputs=1),
      ...     prior=GaussianPrior(std=1.0), likelihood=Bernoulli())
      >>> inputs = np.random.default_rng(0).uniform(-1, 1, (2000, 2)).astype(np.float32)
      >>> records = tacit.as_records(inputs[:1000], (inputs[:1000, 0] > 0).astype(np.int32))
      >>> found = fit_hmc(WarmHMC(num_records=1000, num_chains=4), model, records,
      ...     inputs=inputs[1000:], budget=tacit.Budget(epsilon=8.0, delta=1e-5))
      >>> found.posterior.num_chains, float(found.statement.epsilon) <= 8
      (4, True)

    Reference:
      Rasmussen, "Gaussian processes to speed up hybrid Monte Carlo for expensive Bayesian
      integrals" (2003), for trajectories on a cheap stand-in; Räisä, Koskela, Honkela,
      "Differentially private Hamiltonian Monte Carlo" (2021).
    """
    start, chains = settings.plans(model, inputs, budget)
    budget.require(chains.cost)
    if ledger is not None:
        ledger.ask(Cost(chains.cost, is_secure=seed is None))
    first = fit(start, model, records, budget=budget, seed=seed, ledger=ledger, progress=progress)
    coordinates = Coordinates.of(first.posterior)
    seen = coordinates.model(model)
    method = _tuned(chains.method, seen, inputs, settings)
    found = fit(
        replace(chains, method=method, spent=first.checkpoint.cost),
        seen,
        records,
        budget=budget,
        seed=seed_of_phase(seed, 1),
        ledger=ledger,
        progress=progress,
    )
    posterior = replace(
        found.posterior,
        model=model,
        kept=jax.vmap(jax.vmap(coordinates.params))(found.posterior.kept),
    )
    return replace(found, posterior=_with_distance(posterior, found))


class Coordinates(NamedTuple):
    """``w = mean + root z``: for standard normal z, w has mean and covariance of a private fit.

    Attributes:
      mean: flat.
      root: ``(d, d)``, or ``(d,)`` where it is diagonal.
      template: parameters, of which shapes and types are used.
    """

    mean: Array
    root: Array
    template: Params

    @classmethod
    def of(cls, posterior: Posterior) -> Self:
        """Returns the coordinates of a Gaussian posterior, or of one that was corrected."""
        made = posterior if posterior.raw is None else posterior.raw
        last = jax.tree.map(lambda leaf: leaf[-1, -1], made.kept)
        mean, template = _flat(last["mean"]), last["mean"]
        if isinstance(made.sampler, FullGaussian):
            return cls(mean, jax.vmap(_flat)(last["root"]).T, template)
        if posterior.raw is None:
            return cls(mean, _flat(last["std"]), template)
        # Corrected draws have the correlations and the privacy noise, which such a fit has not.
        draws = np.asarray(jax.vmap(_flat)(posterior.draws()), np.float64)
        root = np.linalg.cholesky(np.atleast_2d(np.cov(draws.T)))
        centre = jnp.asarray(draws.mean(axis=0), jnp.float32)
        return cls(centre, jnp.asarray(root, jnp.float32), template)

    def params(self, z: Array) -> Params:
        """Returns the model's own parameters."""
        _, unflat = ravel_pytree(_tree.at_least_float32(self.template))
        offset = self.root * z if self.root.ndim == 1 else self.root @ z
        return jax.tree.map(
            lambda leaf, new: new.astype(leaf.dtype), self.template, unflat(self.mean + offset)
        )

    def model(self, model: Model) -> Model:
        """Returns the model as a function of z, which begins at draws of the fit."""
        return Model(
            init=lambda key: jax.random.normal(key, self.mean.shape),
            # The density of z is that of w times a constant.
            log_prior=lambda z: model.log_prior(self.params(z)),
            log_likelihood=lambda z, record, key: model.log_likelihood(self.params(z), record, key),
            predict=lambda z, x, key: model.predict(self.params(z), x, key),
        )


def _after(chains: Plan, start: Plan) -> Plan:
    """Returns the plan of the chains, which counts what the start will cost."""
    return replace(chains, spent=Cost(start.cost, is_secure=True))


def _engine(
    num_records: int, clip_norm: float, budget: Budget, chunk_size: int | None
) -> GaussianSum:
    sampling = FullBatch(num_records=num_records)
    if math.isinf(budget.epsilon):
        return GaussianSum.non_private(sampling=sampling, chunk_size=chunk_size)
    return GaussianSum(
        sampling=sampling, clip_norm=clip_norm, noise_multiplier=1.0, chunk_size=chunk_size
    )


def _tuned(method: Method, model: Model, inputs: Input, settings: WarmHMC) -> HMC:
    """Returns the method with the clip norm and the path at which proposals are accepted."""
    assert isinstance(method, HMC)
    ratio, path = method.ratio, _LONGEST_PATH
    if ratio.is_private:
        ratio = replace(ratio, clip_norm=_ratio_clip_norm(model, inputs, settings.quantile))
        dim = _tree.size(jax.eval_shape(model.init, seeded_key(0)))
        # Both ends are standard normal, with correlation cos(path).
        turn = settings.penalty / (2 * dim * ratio.noise_std**2)
        path = min(path, math.acos(1 - turn) if turn < 1 else path)
    num_leapfrog = math.ceil(path / _LEAPFROG)
    return replace(method, ratio=ratio, step_size=path / num_leapfrog, num_leapfrog=num_leapfrog)


def _ratio_clip_norm(model: Model, inputs: Input, quantile: float) -> float:
    """Returns how fast the loss of a synthetic record changes along the paths of proposals."""
    objective, records = objective_of(model), synthetic_records(model, inputs)
    keys = jax.random.split(seeded_key(2), _tree.num_records(records))

    @jax.jit
    def slopes(key: Key, records: Record) -> Array:
        old_key, momentum_key = jax.random.split(key)
        old, momentum = model.init(old_key), model.init(momentum_key)
        new = math.cos(_SHORT_PATH) * old + math.sin(_SHORT_PATH) * momentum

        def rise(record: Record, key: Key) -> Scalar:
            before, after = (objective.record_loss(z, None, record, key) for z in (old, new))
            return jnp.abs(before - after)

        return jax.vmap(rise)(records, keys) / jnp.linalg.norm(new - old)

    found = [slopes(key, records) for key in jax.random.split(seeded_key(3), _NUM_PATHS)]
    norms = np.ravel(found)
    norms = norms[np.isfinite(norms)]
    # The start was paid for: a model whose loss does not change gets a clip norm all the same.
    clip_norm = float(np.quantile(norms, quantile)) if norms.size else 1.0
    return max(clip_norm, 1e-6)


def _with_distance(posterior: Posterior, found: Fit) -> Posterior:
    """Returns the posterior with a caveat, and warns, where chains stay near their start."""
    method, num_steps = found.plan.method, found.plan.num_steps
    assert isinstance(method, HMC)
    assert num_steps is not None
    accepted = float(jnp.mean(found.info.acceptance))
    path = method.step_size * method.num_leapfrog
    # Two independent draws are at a squared distance of 2 d, the ends of a path at this share.
    moved = num_steps * accepted * (1 - math.cos(path))
    if moved >= _LEAST_MOVED:
        return posterior
    caveat = (
        f"The budget moved each chain by {moved:.2g} independent draws, so this posterior is nearly"
        " the private start that its chains began from. Use a larger budget, more records, fewer"
        " chains or fewer parameters, or give the whole budget to Laplace."
    )
    facts = posterior.intervals
    # The records were paid for: the run keeps its posterior also where warnings are errors.
    with contextlib.suppress(UtilityWarning):
        warnings.warn(caveat, UtilityWarning, stacklevel=3)
    return replace(posterior, intervals=replace(facts, caveats=(*facts.caveats, caveat)))


def _flat(params: Params) -> Array:
    flat: Array = ravel_pytree(_tree.at_least_float32(params))[0]
    return flat
