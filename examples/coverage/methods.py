"""The methods of the coverage study, each set by public numbers of a problem only."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import optax

import tacit
from examples.coverage.problem import CURVATURE_SCALE, Problem
from examples.coverage.programs import arrays_of, program_kernel, program_plan
from tacit.inference.laplace import Laplace
from tacit.inference.method import Kernel
from tacit.inference.schedules import Exponential
from tacit.numpyro.method import ProgramSVI
from tacit.privacy.sampling import Sampling
from tacit.typing import Record, Tree

__all__ = ["DELTA", "METHODS", "Setting", "kernel_of", "records_for", "sampling_of"]

DELTA = 1e-5
NUM_STEPS = 400
NUM_PROGRAM_STEPS = 1200
"""Adam needs them to bring groups that are all alike to where they belong."""

NUM_NEWTON_STEPS = 12
"""With all records; ten times as many with batches of a tenth of them."""


def sampling_of(problem: Problem, batches: str) -> Sampling:
    """Returns full batches, or Poisson batches of a tenth of the records."""
    if batches == "full":
        return tacit.FullBatch(num_records=problem.num_records)
    return tacit.PoissonBatch(num_records=problem.num_records, batch_size=problem.num_records // 10)


Setting = Callable[[Problem, Sampling], tacit.Plan]
"""Returns a plan whose noise is still to be calibrated."""


def _engine(problem: Problem, sampling: Sampling) -> tacit.GaussianSum:
    return tacit.GaussianSum(sampling=sampling, clip_norm=problem.clip_norm, noise_multiplier=1.0)


def _rate(problem: Problem, contraction: float) -> float:
    """The learning rate of the mean that brings the fastest direction nearer by this share."""
    return contraction * problem.num_records / problem.precision


def _sgld(problem: Problem, sampling: Sampling) -> tacit.Plan:
    method = tacit.SGLD.fixed_noise(
        release=_engine(problem, sampling), step_size=2 * 0.1 / problem.precision
    )
    return tacit.Plan(method=method, num_steps=NUM_STEPS, burn_in=NUM_STEPS // 4, thinning=1)


def _sghmc(problem: Problem, sampling: Sampling) -> tacit.Plan:
    method = tacit.SGHMC.fixed_noise(
        release=_engine(problem, sampling), step_size=0.05 / problem.precision, friction=0.3
    )
    return tacit.Plan(method=method, num_steps=NUM_STEPS, burn_in=NUM_STEPS // 4, thinning=1)


def _decaying(problem: Problem) -> optax.GradientTransformation:
    return optax.sgd(optax.cosine_decay_schedule(_rate(problem, 0.3), NUM_STEPS))


def _sgd(problem: Problem, sampling: Sampling) -> tacit.Plan:
    method = tacit.SGD(release=_engine(problem, sampling), optimizer=_decaying(problem))
    return tacit.Plan(method=method, num_steps=NUM_STEPS)


def _swag(problem: Problem, sampling: Sampling) -> tacit.Plan:
    base = tacit.SGD(release=_engine(problem, sampling), optimizer=optax.sgd(_rate(problem, 0.1)))
    method = tacit.SWAG(base=base, start=NUM_STEPS // 4, every=5, rank=20)
    return tacit.Plan(method=method, num_steps=NUM_STEPS)


def _vi(problem: Problem, sampling: Sampling) -> tacit.Plan:
    method = tacit.VI(
        release=_engine(problem, sampling),
        optimizer=_decaying(problem),
        guide=tacit.MeanField(init_std=problem.precision**-0.5),
    )
    return tacit.Plan(method=method, num_steps=NUM_STEPS)


def _ivon(problem: Problem, sampling: Sampling) -> tacit.Plan:
    method = tacit.IVON(
        release=_engine(problem, sampling),
        learning_rate=0.05,
        curvature_rate=0.02,
        init_std=problem.precision**-0.5,
    )
    return tacit.Plan(method=method, num_steps=NUM_STEPS)


def _laplace(problem: Problem, sampling: Sampling) -> tacit.Plan:
    engine = _engine(problem, sampling)
    method = Laplace(
        release=replace(engine, clip_norm=problem.joint_clip_norm), curvature_scale=CURVATURE_SCALE
    )
    num_steps = round(NUM_NEWTON_STEPS / sampling.inclusion_rate)
    schedule = Exponential(half_life=num_steps / 2)
    return tacit.Plan(method=replace(method, noise_schedule=schedule), num_steps=num_steps)


def _hmc(problem: Problem, sampling: Sampling) -> tacit.Plan:
    engine = _engine(problem, sampling)
    full = tacit.FullBatch(num_records=problem.num_records)
    method = tacit.HMC(
        gradient=replace(engine, noise_multiplier=2.0),
        ratio=replace(engine, sampling=full),
        step_size=0.5 * problem.precision**-0.5,
        num_leapfrog=3,
        jitter=0.1,
        reuse_gradient=True,
    )
    return tacit.Plan(method=method, num_steps=40, burn_in=10, thinning=1)


def _dpsvi(problem: Problem, sampling: Sampling) -> tacit.Plan:
    return program_plan(problem, sampling, num_steps=NUM_PROGRAM_STEPS)


METHODS: Mapping[str, Setting] = {
    "Laplace": _laplace,
    "SGLD, fixed noise": _sgld,
    "SGHMC, fixed noise": _sghmc,
    "SGD": _sgd,
    "SGD + SWAG": _swag,
    "VI": _vi,
    "IVON": _ivon,
    "HMC": _hmc,
    "DPSVI": _dpsvi,
    "DPSVI, full covariance": _dpsvi,
}


def kernel_of(method_name: str, plan: tacit.Plan, problem: Problem) -> Kernel:
    """Returns the running part of a plan on a problem."""
    if not isinstance(plan.method, ProgramSVI):
        return plan.method.build(problem.model)
    guide = "AutoNormal" if method_name == "DPSVI" else "AutoMultivariateNormal"
    return program_kernel(plan.method, problem, guide)


def records_for(method_name: str) -> Callable[[Record], Tree]:
    """Returns what makes of records what a method takes."""
    return arrays_of if method_name.startswith("DPSVI") else lambda records: records
