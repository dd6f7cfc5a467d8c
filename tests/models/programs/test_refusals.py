"""Refusals: a program that cannot be split is refused with the name of the site and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen
from numpyro.contrib.module import flax_module
from numpyro.distributions import constraints
from numpyro.infer import autoguide

from models.programs.zoo import (
    LOCAL,
    N,
    group,
    label,
    logistic,
    logistic_guide,
    mixed_effects,
    normal_mean,
    real,
    x,
)
from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import split_arguments
from tacit.models.programs.split import explain_program, split_program

TABLE = np.asarray(real)


def no_plate(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 1).expand([y.shape[0]]).to_event(1), obs=y)


def plate_of_another_size(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", 1):
        numpyro.sample("y", dist.Normal(mean, 1).expand([1, N]).to_event(1), obs=y[None])


def two_plates(x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("first", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x[:, 0])
    with numpyro.plate("second", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def square(table):
    with (
        numpyro.plate("rows", table.shape[0], dim=-2),
        numpyro.plate("columns", table.shape[1], dim=-1),
    ):
        numpyro.sample("table", dist.Normal(0, 1), obs=table)


def observed_outside(x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.factor("penalty", -jnp.sum(x) * mean)
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def empirical_prior(y):
    mean = numpyro.sample("mean", dist.Normal(y.mean(), 1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def centred(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(0, scale), obs=y - y.mean())


def standardised(x, y):
    """One record alone has no standard deviation, so alone it has no finite density."""
    x = (x - x.mean(0)) / x.std(0)
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, 1), obs=y)


def ranked(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.factor("rank", scale * jax.nn.log_softmax(y))


def closes_over_the_table(x):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", N):
        numpyro.sample("y", dist.Normal(mean + x, 1), obs=jnp.asarray(TABLE))


def discrete(y):
    with numpyro.plate("records", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(kind, 1), obs=y)


def one_mean_for_each(y):
    means = numpyro.sample("means", dist.Normal(0, 1).expand([y.shape[0]]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(means, 1), obs=y)


def decides_on_values(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1 if y[0] > 0 else 2), obs=y)


def indexes_numpy(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", y.shape[0], subsample_size=2) as index:
        numpyro.sample("y", dist.Normal(mean, 1), obs=TABLE[index])


class WithState(linen.Module):
    """A network that remembers its inputs."""

    @linen.compact
    def __call__(self, x):
        """Normalises by all rows."""
        return linen.BatchNorm(use_running_average=False)(x)[..., 0]


def remembers(x, y):
    net = flax_module("net", WithState(), mutable=["batch_stats"], input_shape=(1, 2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x), 1), obs=y)


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (no_plate, (real,), r"no plate of 6 records.*'y'.*numpyro\.plate"),
        (plate_of_another_size, (real,), "no plate of 6 records"),
        (two_plates, (x, real), "'y' depends on records but is outside.*'first'"),
        (square, (jnp.ones((N, N)),), r"'rows', 'columns'.*plate='rows'"),
        (observed_outside, (x, real), "'penalty' depends on records but is outside"),
        (empirical_prior, (real,), "latent 'mean' of the model is outside.*public constants"),
        (centred, (real,), "density of the site 'y'.*mixes records"),
        (standardised, (x, real), "density of the site 'y'.*mixes records"),
        (ranked, (real,), "density of the site 'rank'.*mixes records"),
        (
            closes_over_the_table,
            (real,),
            "'y' has 6 rows when the program is run on 1 of.*close over none",
        ),
        (discrete, (real,), "'kind' of the model is discrete.*MixtureSameFamily"),
        (one_mean_for_each, (real,), "'means' of the model has a row for each record"),
        (decides_on_values, (real,), "needs the values of records to decide"),
        (indexes_numpy, (real,), "NumPy array that the program closes over.*as an argument"),
        (remembers, (x, real), r"'net\$state' of the model is mutable state.*LayerNorm"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_model_that_cannot_be_split_is_refused_by_site(model, args, message):
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        explain_program(model, *args)


def reads_all(y):
    numpyro.sample("mean", dist.Normal(jnp.mean(y), numpyro.param("scale", 1.0)))


def starts_at_the_data(y):
    loc = numpyro.param("loc", y[0])
    numpyro.sample("mean", dist.Normal(loc, 1))


def bounded_by_the_data(y):
    loc = numpyro.param("loc", 0.5, constraint=constraints.less_than(y[0]))
    numpyro.sample("mean", dist.Normal(loc, 1))


def effect_of_each(x, y):
    numpyro.sample("spread", dist.LogNormal(0, 1))
    numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        locs = numpyro.param("locs", jnp.zeros((N, 2)), event_dim=1)
        numpyro.sample("effect", dist.Normal(locs, 1).to_event(1))


def effect_by_index(x, y):
    numpyro.sample("spread", dist.LogNormal(0, 1))
    numpyro.sample("slope", dist.Normal(0, 1))
    locs = numpyro.param("locs", lambda key: jax.random.normal(key, (N, 2)))
    with numpyro.plate("people", x.shape[0]) as index:
        numpyro.sample("effect", dist.Normal(locs[index], 1).to_event(1))


def effect_outside_the_plate(x, y):
    numpyro.sample("spread", dist.LogNormal(0, 1))
    numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("effect", dist.Normal(y, 1).to_event(2))


@pytest.mark.parametrize(
    ("model", "guide", "message"),
    [
        (normal_mean, reads_all, "latent 'mean' of the guide is outside.*depends on records"),
        (normal_mean, starts_at_the_data, "'loc' starts, or is bounded, at a value computed"),
        (normal_mean, bounded_by_the_data, "'loc' starts, or is bounded, at a value computed"),
        (mixed_effects, effect_of_each, "parameter 'locs' has an entry for each"),
        (mixed_effects, effect_by_index, "density of the site 'effect'.*mixes records"),
        (mixed_effects, effect_outside_the_plate, "'effect' of the guide has a row for each"),
        (mixed_effects, autoguide.AutoNormal(mixed_effects), "'effect' belongs to a record.*auto"),
        (normal_mean, autoguide.AutoLaplaceApproximation(normal_mean), "AutoLaplace.*AutoNormal"),
        (normal_mean, autoguide.AutoDAIS(normal_mean), "AutoDAIS: its own working"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_guide_that_would_read_or_hold_records_is_refused(model, guide, message):
    args = (real,) if model is normal_mean else (x, x)
    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        split_program(model, guide, split_arguments(args, {}))


def test_a_program_with_no_possible_record_is_split_but_says_that_it_was_not_checked():
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(1, 1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Pareto(1000.0, rate), obs=y)

    with pytest.warns(UserWarning, match="no finite density.*counts for nothing") as warned:
        report = explain_program(model, 1000 + jnp.abs(real))
    assert [each.filename for each in warned] == [__file__], "it should name the line of the caller"
    assert not report.is_checked
    assert "was not checked" in str(report)


def test_the_plate_can_be_named_where_two_would_do():
    assert explain_program(square, jnp.ones((N, N)), plate="rows").plate == "rows"


@pytest.mark.parametrize(
    ("plate", "message"), [("labels", "must be one of"), ("groups", "has size 3 and 3 rows")]
)
def test_a_named_plate_must_be_one_of_the_records(plate, message):
    def model(y, g):
        with numpyro.plate("groups", 3):
            means = numpyro.sample("means", dist.Normal(0, 1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(means[g], 1), obs=y)

    with pytest.raises(InvalidArgumentError, match=message):
        explain_program(model, real, group, plate=plate)


def test_the_explanation_says_what_each_site_is():
    case = LOCAL["mixed effects"]
    report = explain_program(case.model, *case.args, guide=case.guide)
    found = {site.name: (site.role, site.treatment) for site in report.sites}
    assert found == {
        "spread": ("shared latent", "outside the clip, exact"),
        "slope": ("shared latent", "outside the clip, exact"),
        "effect": ("local latent", "inside the clip"),
        "y": ("observation", "inside the clip"),
        "weights": ("parameter", "optimised"),
        "spread_loc": ("parameter", "optimised"),
        "slope_value": ("parameter", "optimised"),
    }
    assert "6 records in the plate 'people', from the arguments x, y" in str(report)
    case = LOCAL["missing outcomes"]
    report = explain_program(case.model, *case.args, guide=case.guide)
    reasons = {site.name: site.reason for site in report.sites}
    assert "the guide leaves it out" in reasons["y_unobserved"]


def test_messages_show_no_value_of_a_record():
    secret = jnp.full((N, 2), 4711.5)
    with pytest.raises(InvalidArgumentError) as refusal:
        split_program(logistic, logistic_guide, split_arguments((secret,), {"y": label[:3]}))
    assert "4711" not in str(refusal.value)
    with pytest.raises(InvalidArgumentError) as refusal:
        explain_program(decides_on_values, secret[:, 0])
    assert "4711" not in str(refusal.value)
