"""Steps on programs ask records for gradients at the shared draw, where that is all they see."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from numpyro_cases import (
    KEY,
    amortised,
    factor_model,
    hand_written,
    private,
    regression,
    table,
)
from tacit.models.programs.arguments import split_arguments
from tacit.models.programs.split import split_program
from tacit.numpyro.method import ProgramSVI
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key

pytestmark = pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning")


def with_a_parameter(x, y=None):
    """The regression whose scale is no latent."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def method(num_records, noise_multiplier=1.0):
    return ProgramSVI(
        release=GaussianSum(
            sampling=FullBatch(num_records=num_records),
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
        ),
        optim=numpyro.optim.Adam(0.1),
        num_records=num_records,
    )


def asked_and_answered(program, records, monkeypatch):
    """A step, with what the engine was asked for and what it answered."""
    seen, ask = [], GaussianSum.counted_gradient

    def spy(self, key, loss, params, data, **overrides):
        seen.append((params, ask(self, key, loss, params, data, **overrides)))
        return seen[-1][1]

    monkeypatch.setattr(GaussianSum, "counted_gradient", spy)
    monkeypatch.setattr("tacit.numpyro.method.without_repeats", lambda step: step)
    kernel = method(len(records[0])).build(program)

    @jax.jit
    def step(state):
        seen.clear()
        return kernel.step(seeded_key(1), state, records)[0], list(seen)

    state, (found,) = step(kernel.init(KEY))
    return kernel, state, found


@pytest.mark.parametrize("num_particles", [1, 3])
def test_a_step_notes_where_it_asked_and_what_the_engine_answered(
    num_particles, monkeypatch, clip_unverified
):
    records = list(table())
    program = split_program(
        regression, hand_written, split_arguments(table(), {}), num_particles=num_particles
    )
    kernel, state, (asked, answer) = asked_and_answered(program, records, monkeypatch)
    evidence = kernel.evidence(state)
    assert [set(point) for point in asked] == [{"weights", "scale"}] * num_particles
    flat = [jnp.stack([ravel_pytree(one)[0] for one in part]) for part in (asked, answer.estimate)]
    np.testing.assert_allclose(evidence.points[0], flat[0].mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evidence.gradients[0], flat[1].sum(0), rtol=1e-4, atol=1e-4)
    assert float(evidence.variances[0]) == pytest.approx(num_particles, rel=1e-5)
    assert int(evidence.num_steps) == 1


@pytest.mark.parametrize(
    ("model", "guide", "names"),
    [
        (factor_model, amortised, {"q_loading", "encoder"}),
        (with_a_parameter, AutoNormal(with_a_parameter), {"scale", "weights_auto_loc"}),
    ],
    ids=["a guide that reads records", "a parameter in the model"],
)
def test_where_records_see_more_they_are_asked_about_the_parameters(
    model, guide, names, monkeypatch, clip_unverified
):
    records = list(table())[: 1 if model is factor_model else 2]
    program = split_program(model, guide, split_arguments(tuple(records), {}))
    kernel, state, (asked, _) = asked_and_answered(program, records, monkeypatch)
    assert names <= set(asked)
    # Norms are counted all the same; no posterior could be made of the rest.
    evidence = kernel.evidence(state)
    assert evidence.points.shape[1] == 0
    assert float(evidence.counts.sum()) == 1


def test_a_run_without_noise_notes_nothing():
    program = split_program(regression, hand_written, split_arguments(table(), {}))
    assert method(24, noise_multiplier=0.0).build(program).init(KEY).evidence is None


@pytest.mark.parametrize(
    ("model", "guide", "text"),
    [
        (
            regression,
            AutoMultivariateNormal(regression),
            "the shared draw (scale, weights): 3 numbers instead of 12.",
        ),
        (
            with_a_parameter,
            AutoNormal(with_a_parameter),
            "the guide's parameters (5 numbers), because records may see the model's parameter"
            " 'scale', which is no latent.",
        ),
    ],
    ids=["aligned", "not aligned"],
)
def test_the_explanation_of_the_clip_says_what_is_released(model, guide, text):
    svi = private(model, guide)
    svi.init(KEY, *table())
    assert str(svi.explain_clipping()).startswith(f"Gradients are released with respect to {text}")


@pytest.mark.filterwarnings("ignore:the program has no finite density:UserWarning")
def test_a_step_that_is_skipped_leaves_average_and_evidence_as_they_are(clip_unverified):
    def improper(x, y=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.factor("never", jnp.nan * mean)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def guide(x, y=None):
        numpyro.sample("mean", dist.Normal(numpyro.param("location", 0.0), 0.1))

    svi = private(improper, guide)
    before = svi.init(KEY, *table())
    after, _ = svi.stable_update(before, *table())
    assert int(after.step) == 1
    for name in ("optim_state", "average", "evidence"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, name), getattr(before, name))


def test_what_a_state_remembers_of_releases_decides_no_noise(clip_unverified):
    svi = private(guide=hand_written, seed=None)
    state = svi.init(KEY, *table())
    other = state._replace(
        average=jax.tree.map(lambda leaf: leaf + 1, state.average),
        evidence=state.evidence._replace(points=state.evidence.points + 1),
    )
    update = jax.jit(lambda state: svi.update(state, *table())[0])
    moved = [svi.get_params(update(each)) for each in (state, other)]
    jax.tree.map(np.testing.assert_array_equal, *moved)
