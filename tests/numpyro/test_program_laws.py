"""The laws, for steps on programs: what is released is paid for, and nothing else gets out."""

import jax.numpy as jnp
import numpyro
import pytest

from laws import laws
from numpyro_cases import NUM_RECORDS, amortised, factor_model, hand_written, regression, table
from tacit.models.programs.arguments import split_arguments
from tacit.models.programs.split import split_program
from tacit.numpyro.method import PrivateLoss, ProgramSVI
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch

SAMPLING = PoissonBatch(num_records=NUM_RECORDS, batch_size=6, max_batch_size=12)
METHOD = ProgramSVI(
    release=GaussianSum(sampling=SAMPLING, clip_norm=1.0, noise_multiplier=1.1),
    optim=numpyro.optim.Adam(0.1),
    num_records=NUM_RECORDS,
    loss=PrivateLoss(clip=5.0, noise_ratio=2.0, every=2),
)


@pytest.fixture(scope="module", params=["shared latents", "a latent for each record"])
def program(request):
    if request.param == "shared latents":
        return split_program(regression, hand_written, split_arguments(table(), {}))
    return split_program(factor_model, amortised, split_arguments(table()[:1], {}))


def records(program, seed=0):
    return list(table(seed=seed))[: len(program.blank)]


def test_cost_equals_the_releases_actually_made(program, monkeypatch):
    laws.check_cost_equals_releases(METHOD, program, records(program), monkeypatch, num_steps=3)


def test_without_the_engine_no_trace_of_the_records_is_left(program, monkeypatch):
    laws.check_non_interference(
        METHOD, program, records(program), records(program, seed=1), monkeypatch
    )


def test_the_cost_of_a_run_is_the_cost_of_its_parts():
    parts = count_releases(METHOD.cost(3)) + count_releases(METHOD.cost(4, start=3))
    assert count_releases(METHOD.cost(7)) == parts


def test_evaluations_are_paid_with_the_first_step_and_only_then():
    loss = PrivateLoss(clip=5.0, every=None, num_evaluations=4)
    method = ProgramSVI(
        release=METHOD.release, optim=METHOD.optim, num_records=NUM_RECORDS, loss=loss
    )
    assert [sum(count_releases(method.cost(2, start=at)).values()) for at in (0, 2)] == [6, 2]


def test_scaling_the_noise_scales_that_of_losses_too():
    scaled = METHOD.scale_noise(2.0)
    ratio = [
        scaled.loss.release_beside(scaled.release).noise_multiplier,
        METHOD.loss.release_beside(METHOD.release).noise_multiplier,
    ]
    assert ratio[0] == pytest.approx(2 * ratio[1])
    assert jnp.isclose(ratio[1], 2.2)
