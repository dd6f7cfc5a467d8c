"""Settings: what a user says of privacy, and what follows once the number of records is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.example_libraries import optimizers
from numpyro.infer import Trace_ELBO
from numpyro.optim import Minimize, _NumPyroOptim, optax_to_numpyro

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import signature_of
from tacit.numpyro.method import PrivateLoss, ProgramSVI
from tacit.privacy.accounting import Accountant
from tacit.privacy.accounting.accountants import DEFAULT_ACCOUNTANT
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import most_steps, smallest_noise
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch, Sampling, UnstatedBatch
from tacit.privacy.statement.construction import require_adjacency
from tacit.typing import Tree

__all__ = [
    "PrivacySettings",
    "Resolved",
    "as_numpyro_optimiser",
    "given_once",
    "is_traced",
    "num_particles_of",
    "reads_the_loss",
    "require_reverse_mode",
    "takes",
]


def num_particles_of(loss: Any) -> int:
    """Returns how many particles an objective averages; raises unless it can be split."""
    # Subclasses of Trace_ELBO compute something else.
    if type(loss) is not Trace_ELBO:
        raise InvalidArgumentError(
            "loss must be numpyro.infer.Trace_ELBO, which is a sum over records and a part"
            f" without them; got {type(loss).__name__}. Use Trace_ELBO(num_particles=...)."
        )
    if loss.multi_sample_guide or not loss.sum_sites:
        raise InvalidArgumentError(
            "loss must be a plain Trace_ELBO; got one with multi_sample_guide or without sum_sites."
            " Use Trace_ELBO(num_particles=...)."
        )
    return int(loss.num_particles)


def given_once(
    name: str, value: float | None, other_name: str, other: float | None
) -> float | None:
    """Returns the value of a setting that has two names; raises where both were given."""
    if value is not None and other is not None:
        raise InvalidArgumentError(
            f"{name} and {other_name} are two names of one thing; got {value!r} and {other!r}."
            " Give one of them."
        )
    return other if value is None else value


def require_reverse_mode(forward_mode_differentiation: bool) -> None:
    """Raises for NumPyro's forward mode."""
    if forward_mode_differentiation:
        raise InvalidArgumentError(
            "forward_mode_differentiation must be False: records are clipped on the way back. Write"
            " loops with lax.scan, which can be differentiated in reverse."
        )


def as_numpyro_optimiser(optim: Any) -> _NumPyroOptim:
    """Returns an optimiser in NumPyro's shape.

    Raises:
      InvalidArgumentError: if it is no optimiser, or one that evaluates the objective itself.
    """
    if isinstance(optim, Minimize):
        raise InvalidArgumentError(
            "optim must take one gradient a step; got Minimize, which evaluates the loss of all"
            " records again and again in one step. Use numpyro.optim.Adam."
        )
    if isinstance(optim, _NumPyroOptim):
        return optim
    if isinstance(optim, optimizers.Optimizer):
        return _NumPyroOptim(lambda *parts: parts, *optim)
    if isinstance(optim, optax.GradientTransformation):
        return optax_to_numpyro(optim)
    raise InvalidArgumentError(
        "optim must be an optimiser of numpyro.optim, jax.example_libraries.optimizers or optax;"
        f" got {type(optim).__name__}."
    )


def reads_the_loss(optim: _NumPyroOptim, params: Tree) -> bool:
    """Whether an update depends on the value of the loss, as for step sizes that follow it."""
    if not optim.update_with_value:
        return False
    state = jax.eval_shape(optim.init, params)
    program = jax.make_jaxpr(lambda value, g, s: optim.update(g, s, value=value))(
        jnp.zeros(()), params, state
    )
    value = program.jaxpr.invars[0]
    used = [operand for equation in program.jaxpr.eqns for operand in equation.invars]
    return any(operand is value for operand in [*used, *program.jaxpr.outvars])


_LARGEST_DELTA = 1e-5
_NO_LIMIT = 1e300
"""An epsilon that no cost reaches: a budget that only tells what is spent. (An infinite one would
say that nothing is promised.)"""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What is run, fixed for good.

    Attributes:
      method: with its noise.
      budget: gives delta and accountant, and the limit if there is one.
      max_steps: how many steps the budget allows; None for as many as wanted.
      is_table: whether programs are called with the whole table, and batches are drawn inside.
    """

    method: ProgramSVI
    budget: Budget
    max_steps: int | None
    is_table: bool


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """What a user says of privacy, checked as far as it can be without a table.

    Args:
      clip_norm: the largest gradient norm that one record contributes.
      noise_multiplier: the noise, if it is given rather than sought.
      epsilon: the largest epsilon; None sets no limit.
      delta: by default the smaller of 1e-5 and a tenth of one over the number of records.
      num_steps: for how many steps noise is sought.
      batch_size: how many records a batch holds on average; None takes all.
      sampling: how batches are drawn, instead of ``batch_size``.
      num_obs_total: how many records there are, if programs are called with the user's batches.
      accountant: turns costs into epsilon.
      clipping: the rule that enforces the bound.
    """

    clip_norm: float | None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    num_steps: int | None = None
    batch_size: float | None = None
    sampling: Sampling | None = None
    num_obs_total: int | None = None
    accountant: Accountant = DEFAULT_ACCOUNTANT
    clipping: Clipping = field(default_factory=Flat)

    def __post_init__(self) -> None:
        if self.clip_norm is None:
            raise InvalidArgumentError(
                "clip_norm must be given: the largest norm of one record's gradient, a public"
                " number that does not come from the records. tacit.data_free_clip_norm suggests"
                " one from synthetic records."
            )
        _check.positive(clip_norm=self.clip_norm, infinite=True)
        if self.noise_multiplier is not None:
            _check.non_negative(noise_multiplier=self.noise_multiplier)
        elif self.epsilon is None:
            raise InvalidArgumentError(
                "epsilon or noise_multiplier must be given; got neither. Give epsilon=, delta= and"
                " num_steps= to have the noise found, or noise_multiplier= (dp_scale=) itself;"
                " noise_multiplier=0 is a run that is not private."
            )
        if self.epsilon is not None:
            _check.positive(epsilon=self.epsilon, infinite=True)
        if self.delta is not None:
            _check.fraction(one=False, delta=self.delta)
        if self.num_steps is not None:
            _check.positive_integer(num_steps=self.num_steps)
        if self.batch_size is not None:
            _check.positive(batch_size=self.batch_size)
        if self.num_obs_total is not None:
            _check.positive_integer(num_obs_total=self.num_obs_total)
        if self.batch_size is not None and self.sampling is not None:
            raise InvalidArgumentError(
                f"batch_size and sampling both say how batches are drawn; got {self.batch_size!r}"
                f" and {self.sampling!r}. Give one of them."
            )

    def resolve(
        self,
        *,
        num_rows: int,
        optim: _NumPyroOptim,
        loss: PrivateLoss | None,
        num_steps: int | None,
    ) -> Resolved:
        """Returns what is run.

        Args:
          num_rows: how many records a program is called with.
          optim: the optimiser.
          loss: which losses are released.
          num_steps: of a run, where noise is sought and no ``num_steps`` was given.
        """
        num_records = self._num_records(num_rows)
        sampling = self._sampling(num_records, num_rows)
        budget = self._budget(sampling.public_records)
        require_adjacency(sampling, budget)
        budget.warn_if_delta_is_large(sampling.public_records)
        seeks_noise = self.noise_multiplier is None and math.isfinite(budget.epsilon)
        # Where noise is sought, one stands for it; without a limit none is needed.
        noise = float(seeks_noise) if self.noise_multiplier is None else self.noise_multiplier
        assert self.clip_norm is not None
        method = ProgramSVI(
            release=GaussianSum(
                sampling=sampling,
                clip_norm=self.clip_norm,
                noise_multiplier=noise,
                clipping=self.clipping,
            ),
            optim=optim,
            num_records=num_records,
            loss=loss,
            shares_batches=num_rows != num_records,
        )
        steps = num_steps if self.num_steps is None else self.num_steps
        if self.epsilon is None or math.isinf(budget.epsilon):
            return Resolved(
                method=method,
                budget=budget,
                max_steps=self.num_steps,
                is_table=num_rows == num_records,
            )
        if seeks_noise:
            method = _calibrated(method, steps, budget)
        elif steps is None:
            steps = most_steps(method.cost, budget)
        assert steps is not None
        budget.require(method.cost(steps))
        return Resolved(
            method=method, budget=budget, max_steps=steps, is_table=num_rows == num_records
        )

    def _budget(self, public_records: int) -> Budget:
        delta = min(_LARGEST_DELTA, 0.1 / public_records) if self.delta is None else self.delta
        if self.epsilon is not None:
            epsilon = self.epsilon
        else:
            epsilon = math.inf if self.noise_multiplier == 0 else _NO_LIMIT
        return Budget(epsilon=epsilon, delta=delta, accountant=self.accountant)

    def _num_records(self, num_rows: int) -> int:
        stated = None if self.sampling is None else self.sampling.num_records
        if self.num_obs_total is None:
            if stated is not None and stated != num_rows:
                raise InvalidArgumentError(
                    f"the program was called with {num_rows} rows, but sampling was configured for"
                    f" num_records={stated}. Pass the whole table; if these are batches that you"
                    f" draw yourself, say so by num_obs_total={stated}."
                )
            return num_rows
        if stated is not None and stated != self.num_obs_total:
            raise InvalidArgumentError(
                f"num_obs_total={self.num_obs_total} and sampling.num_records={stated} must agree."
            )
        return self.num_obs_total

    def _sampling(self, num_records: int, num_rows: int) -> Sampling:
        if self.sampling is not None:
            return self.sampling
        if num_rows != num_records:
            size = num_rows if self.batch_size is None else self.batch_size
            return UnstatedBatch(num_records=num_records, batch_size=size)
        if self.batch_size is None:
            return FullBatch(num_records=num_records)
        return PoissonBatch(num_records=num_records, batch_size=self.batch_size)


def _calibrated(method: ProgramSVI, num_steps: int | None, budget: Budget) -> ProgramSVI:
    """Returns the method with the least noise that the budget allows for so many steps."""
    if num_steps is None:
        raise InvalidArgumentError(
            "num_steps must be given for the noise to be found: it depends on how often"
            " records are asked. Give num_steps= to DPSVI, or call run."
        )
    factor = smallest_noise(lambda factor: method.scale_noise(factor).cost(num_steps), budget)
    return method.scale_noise(factor)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of this name."""
    signature = signature_of(function)
    return signature is not None and name in signature.parameters


def is_traced(tree: Tree) -> bool:
    """Whether a part of a tree is not known yet, because a function is being compiled."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
