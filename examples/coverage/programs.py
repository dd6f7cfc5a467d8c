"""The step of `DPSVI` on many data sets, without the object that draws secret keys."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.handlers import seed
from numpyro.infer import util
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import tacit
from examples.coverage.problem import Problem
from tacit.inference.method import Kernel
from tacit.models.programs.arguments import split_arguments
from tacit.models.programs.split import SplitProgram, split_program
from tacit.numpyro.method import ProgramSVI
from tacit.privacy.sampling import Sampling
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["arrays_of", "program_kernel", "program_plan", "split_of"]

GUIDES = {"AutoNormal": AutoNormal, "AutoMultivariateNormal": AutoMultivariateNormal}


def program_plan(problem: Problem, sampling: Sampling, *, num_steps: int) -> tacit.Plan:
    """Returns a plan for the step that `DPSVI` repeats, with Adam."""
    release = tacit.GaussianSum(
        sampling=sampling, clip_norm=problem.clip_norm, noise_multiplier=1.0
    )
    method = ProgramSVI(
        release=release, optim=numpyro.optim.Adam(0.05), num_records=problem.num_records
    )
    return tacit.Plan(method=method, num_steps=num_steps)


def program_kernel(method: ProgramSVI, problem: Problem, guide_name: str) -> Kernel:
    """Returns the kernel of a method on a problem's program; it retains the guide's average."""
    split = split_of(problem, guide_name)
    kernel = method.build(split)
    return kernel._replace(
        retain=lambda state: state.average,
        sampler=_GuideDraws(problem.program, split.program.guide, split),
    )


def split_of(problem: Problem, guide_name: str) -> SplitProgram:
    """Returns a problem's program and a guide, taken apart."""
    assert problem.program is not None
    rows = jnp.zeros((problem.num_records, 2)), jnp.zeros(problem.num_records)
    guide = GUIDES[guide_name](problem.program)
    return split_program(problem.program, guide, split_arguments(rows, {}))


def arrays_of(records: Record) -> list[Array]:
    """Returns records as the program takes them."""
    return [records.x, records.y]


@dataclass(frozen=True, kw_only=False)
class _GuideDraws:
    """Draws the unconstrained latents from a guide."""

    program: Any
    guide: Any
    split: SplitProgram

    def draw(self, key: Key, state: Tree) -> Params:
        """Returns one draw."""
        latents = self.guide.sample_posterior(key, self.split.constrain(state))
        row = jnp.zeros((1, 2)), jnp.zeros(1)
        found: Params = util.unconstrain_fn(seed(self.program, jax.random.key(0)), row, {}, latents)
        return {name: found[name] for name in latents}
