"""Alignment: with what records see of a guide as parameters, the objective stays what it is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import autoguide

from models.programs.test_splitting import FAST, LEFT_OUT, arguments_of, automatic, hand_written
from models.programs.zoo import LOCAL, SHARED, N
from tacit.models.programs.split import explain_program, split_program

AUTOMATIC = {
    "varying intercepts": autoguide.AutoNormal,
    "supports": autoguide.AutoMultivariateNormal,
    "reparameterised": autoguide.AutoNormal,
    "random network": autoguide.AutoDelta,
    "table of columns": autoguide.AutoLowRankMultivariateNormal,
    "drifting": autoguide.AutoMultivariateNormal,
    "subsampled by index": autoguide.AutoNormal,
}
ALIGNED = [
    *(
        pytest.param(case, hand_written, 2 if name == "logistic, keywords" else 1, id=name)
        for name, case in SHARED.items()
        if case.guide is not None
    ),
    *(
        pytest.param(SHARED[name], automatic(kind), 1 + at % 2, id=f"auto, {name}")
        for at, (name, kind) in enumerate(AUTOMATIC.items())
    ),
    pytest.param(LOCAL["missing outcomes"], hand_written, 2, id="missing outcomes"),
]


@LEFT_OUT
@pytest.mark.parametrize(("case", "make_guide", "num_particles"), ALIGNED)
def test_the_guides_gradient_follows_from_that_at_the_shared_draw(case, make_guide, num_particles):
    arguments = arguments_of(case)
    split = split_program(case.model, make_guide(case), arguments, num_particles=num_particles)
    assert split.alignment.obstacle is None, str(split.alignment)
    params, key = split.init(jax.random.key(3)), jax.random.key(4)
    keys = jax.random.split(jax.random.key(5), N)

    def direct(params):
        terms = jax.vmap(split.record_term, in_axes=(None, None, 0, 0))
        return jnp.sum(terms(params, key, arguments.records, keys))

    def at_draws(draws):
        terms = jax.vmap(split.seen_term, in_axes=(None, None, 0, 0))
        return jnp.sum(terms(draws, key, arguments.records, keys))

    @jax.jit(compiler_options=FAST)
    def both(params):
        draws, transposed = jax.vjp(lambda params: split.draws(params, key), params)
        value, gradient = jax.value_and_grad(at_draws)(draws)
        return (value, transposed(gradient)[0]), jax.value_and_grad(direct)(params)

    found, wanted = both(params)
    # Float32 sums of a few dozen terms, in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-4, 2e-4), found, wanted)


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        ("mixed effects", "the guide's distribution of 'effect' is a function of the record"),
        ("vae", "the guide's distribution of 'z' is a function of the record"),
    ],
)
def test_guides_that_read_records_keep_the_gradient_of_their_parameters(name, obstacle):
    case = LOCAL[name]
    split = split_program(case.model, case.guide, arguments_of(case))
    assert split.alignment.obstacle == obstacle
    assert split.latents is None


def with_a_parameter(x):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


def test_a_parameter_of_the_model_is_no_latent_and_is_named():
    report = explain_program(
        with_a_parameter, jnp.arange(5.0), guide=autoguide.AutoNormal(with_a_parameter)
    )
    assert "because records may see the model's parameter 'scale'" in str(report)


def hierarchy(x):
    top = numpyro.sample("top", dist.Normal(0, 1))
    mean = numpyro.sample("mean", dist.Normal(top, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean.sum(), 1), obs=x)


def test_only_what_records_see_is_released_and_the_report_says_so():
    guide = autoguide.AutoMultivariateNormal(hierarchy)
    report = explain_program(hierarchy, jnp.arange(5.0), guide=guide)
    assert report.alignment.sites == ("mean",)
    assert "with respect to the shared draw (mean): 3 numbers instead of 20." in str(report)


def test_without_a_guide_nothing_is_said_of_what_is_released():
    assert explain_program(hierarchy, jnp.arange(5.0)).alignment is None


def test_a_draw_holds_what_the_guide_drew_in_unconstrained_numbers():
    case = SHARED["supports"]
    split = split_program(case.model, autoguide.AutoNormal(case.model), arguments_of(case))
    params, key = split.init(jax.random.key(3)), jax.random.key(4)
    (draw,) = split.draws(params, key)
    sites = split.program.run(split.constrain(params), key, split.blank).guide
    np.testing.assert_allclose(
        draw["share"], jax.scipy.special.logit(sites["share"]["value"]), 1e-4
    )
    assert set(draw) == {"low", "share", "cuts", "top"}
    assert draw["cuts"].shape == (2,)
