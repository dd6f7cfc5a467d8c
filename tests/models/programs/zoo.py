"""Programs that people write: what the tests of splitting, DPSVI and synthetic data share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen
from numpyro.contrib.control_flow import scan
from numpyro.contrib.module import flax_module, random_flax_module
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam

N = 6
GROUPS = 3
_random = jax.random.normal(jax.random.key(20), (N, 5))

x = _random[:, :2]
real = _random[:, 2]
label = (_random[:, 3] > 0).astype(jnp.int32)
count = jnp.floor(jnp.abs(3 * _random[:, 3]))
group = jnp.array([0, 1, 2, 1, 0, 2])
positive = jnp.exp(_random[:, 4])


@dataclass(frozen=True)
class Case:
    """A program and what it is called with.

    ``whole`` are keyword arguments with which NumPyro sees every record once.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    whole: dict[str, Any] = field(default_factory=dict)
    guide: Callable[..., Any] | None = None


def normal_mean(y):
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def normal_mean_guide(y):
    loc = numpyro.param("loc", jax.random.normal)
    scale = numpyro.param("scale", 0.5, constraint=constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


def logistic(x, y=None, num_records=None):
    num_records = x.shape[0] if num_records is None else num_records
    intercept = numpyro.sample("intercept", dist.Cauchy(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, 4).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("batch", num_records, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def logistic_guide(x, y=None, num_records=None):
    loc = numpyro.param("loc", lambda key: jax.random.normal(key, (x.shape[1] + 1,)))
    scale = numpyro.param("scale", jnp.full(x.shape[1] + 1, 0.3), constraint=constraints.positive)
    numpyro.sample("intercept", dist.Normal(loc[0], scale[0]))
    numpyro.sample("weights", dist.Normal(loc[1:], scale[1:]).to_event(1))


def subsampled_by_index(x, y, batch_size=None):
    weights = numpyro.sample("weights", dist.Laplace(jnp.zeros(x.shape[1]), 1).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(2, 2))
    with numpyro.plate("records", x.shape[0], subsample_size=batch_size) as index:
        numpyro.sample("y", dist.Normal(x[index] @ weights, noise), obs=y[index])


def subsampled_by_statement(x, y, batch_size=None):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(x.shape[1]), 1).to_event(1))
    with numpyro.plate("records", N, subsample_size=batch_size):
        rows = numpyro.subsample(x, event_dim=1)
        counts = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Poisson(jnp.exp(rows @ weights)), obs=counts)


def hierarchical_logistic(xs, ys, ls, gs, N):
    """The seed's model: group weights around a public description of the groups."""
    batch_size, num_inputs = xs.shape
    num_groups, num_features = gs.shape
    matrix = numpyro.sample("M", dist.Normal(0, 4), sample_shape=(num_inputs, num_features))
    with numpyro.plate("group", num_groups, num_groups):
        ws = numpyro.sample("ws", dist.Normal(gs @ matrix.T, 1).to_event(1))
    with numpyro.plate("batch", N, batch_size):
        logits = jnp.einsum("nd,nd->n", xs, ws[ls])
        numpyro.sample("ys", dist.Bernoulli(logits=logits), obs=ys)


def hierarchical_logistic_guide(xs, ys, ls, gs, N):
    """The seed's guide, which leaves the group weights out."""
    shape = (xs.shape[1], gs.shape[1])
    loc = numpyro.param("M_loc", jnp.zeros(shape))
    scale = jnp.exp(numpyro.param("M_scale_log", jnp.zeros(shape)))
    numpyro.sample("M", dist.Normal(loc, scale))


def varying_intercepts(x, g, y):
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    with numpyro.plate("groups", GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(0, scale))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4, intercepts[g] + x[:, 0], 1), obs=y)


def mixture(xs, num_components=3):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_components)))
    with numpyro.plate("components", num_components):
        means = numpyro.sample("means", dist.Normal(0, 3).expand([xs.shape[1]]).to_event(1))
        scales = numpyro.sample("scales", dist.InverseGamma(3, 2))
    parts = dist.Normal(means, scales[:, None]).to_event(1)
    with numpyro.plate("batch", xs.shape[0]):
        numpyro.sample("xs", dist.MixtureSameFamily(dist.Categorical(probs=weights), parts), obs=xs)


def supports(x, y):
    """Bounded, ordered, and a support that depends on another latent."""
    top = numpyro.sample("top", dist.Exponential(1))
    low = numpyro.sample("low", dist.Uniform(0, 1 + top))
    share = numpyro.sample("share", dist.Beta(2, 2))
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(
        dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()))  # fmt: skip
    with numpyro.plate("records", y.shape[0]):
        mean = share * cuts[0] + low + cuts[1] * x[:, 0]
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


@numpyro.handlers.reparam(config={"weights": LocScaleReparam(0)})
def reparameterised(x, y):
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, scale).expand([2]).to_event(1))
    numpyro.deterministic("size", jnp.sum(weights**2))
    with numpyro.plate("records", x.shape[0]):
        mean = numpyro.deterministic("mean", x @ weights)
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def masked_and_scaled(y, is_known, importance):
    """Missing values and weights of records, inside the plate; a tempered prior outside."""
    with numpyro.handlers.scale(scale=0.5):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(2))
    with (
        numpyro.plate("records", y.shape[0]),
        numpyro.handlers.mask(mask=is_known),
        numpyro.handlers.scale(scale=importance),
    ):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def factors(x, y):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(2), 1).to_event(1))
    numpyro.factor("small", -0.1 * jnp.sum(weights**4))
    with numpyro.plate("records", x.shape[0]):
        numpyro.factor("huber", -jnp.log(jnp.cosh(y - x @ weights)))


def nested_plates(table):
    """Features in a plate of their own, inside and outside that of the records."""
    features = numpyro.plate("features", table.shape[1], dim=-1)
    records = numpyro.plate("records", table.shape[0], dim=-2)
    with features:
        means = numpyro.sample("means", dist.Normal(0, 1))
    with records, features:
        numpyro.sample("table", dist.Normal(means, 1), obs=table)


class Net(linen.Module):
    """A little network."""

    @linen.compact
    def __call__(self, x):
        """Maps rows to one number each."""
        return linen.Dense(1)(jnp.tanh(linen.Dense(3)(x)))[..., 0]


def random_network(x, y):
    net = random_flax_module("net", Net(), dist.Normal(0, 1), input_shape=(1, x.shape[1]))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x), 0.5), obs=y)


def network_with_params(x, y):
    net = flax_module("net", Net(), input_shape=(1, x.shape[1]))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x), noise), obs=y)


def counts_with_zeros(x, y, exposure):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(2), 1).to_event(1))
    concentration = numpyro.sample("concentration", dist.Gamma(2, 1))
    gate = numpyro.sample("gate", dist.Beta(1, 3))
    with numpyro.plate("records", x.shape[0]):
        counts = dist.NegativeBinomial2(exposure * jnp.exp(x @ weights), concentration)
        numpyro.sample("y", dist.ZeroInflatedDistribution(counts, gate=gate), obs=y)


def table_of_columns(table):
    """A dictionary of columns of different types, all observed."""
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(GROUPS)))
    rate = numpyro.sample("rate", dist.Gamma(1, 1))
    with numpyro.plate("rows", table["group"].shape[0]):
        group = numpyro.sample("group", dist.Categorical(probs=shares), obs=table["group"])
        numpyro.sample("spent", dist.Exponential(rate * (1 + group)), obs=table["spent"])


def flat_prior(y):
    location = numpyro.sample("location", dist.ImproperUniform(constraints.real, (), ()))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(location, 1), obs=y)


@numpyro.handlers.condition(data={"slope": jnp.array(0.7)})
@numpyro.handlers.block(hide=["hidden"])
def conditioned(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    numpyro.deterministic("hidden", slope + intercept)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + slope * x[:, 0], 1), obs=y)


def drifting(x, y):
    """Latents of a random walk, outside the record plate."""

    def walk(level, _):
        level = numpyro.sample("level", dist.Normal(level, 0.5))
        return level, level

    _, levels = scan(walk, 0.0, jnp.arange(GROUPS))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(levels) * x[:, 0], 1), obs=y)


def mixed_effects(x, y):
    """Every record has an effect of its own."""
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(0, spread).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(slope * x + effect, 0.5).to_event(1), obs=y)


def mixed_effects_guide(x, y):
    """The effects' distribution is a function of the record; the local comes before a shared."""
    weights = numpyro.param("weights", lambda key: jax.random.normal(key, (4, 2)))
    with numpyro.plate("people", x.shape[0]):
        loc = jnp.concatenate([x, y], axis=1) @ weights
        numpyro.sample("effect", dist.Normal(loc, 0.3).to_event(1))
    numpyro.sample("spread", dist.LogNormal(numpyro.param("spread_loc", 0.0), 0.1))
    numpyro.sample("slope", dist.Delta(numpyro.param("slope_value", 0.3)))


def missing_outcomes(y, is_known):
    """Unknown outcomes are latents of their records; the guide leaves them out."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y, obs_mask=is_known)


def missing_outcomes_guide(y, is_known):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.1), 0.5))


def dense(name, num_inputs, num_outputs):
    """The weights of one layer, as plain parameters."""
    scale = num_inputs**-0.5

    def start(key):
        return scale * jax.random.normal(key, (num_inputs, num_outputs))

    kernel = numpyro.param(f"{name}_kernel", start)
    return kernel, numpyro.param(f"{name}_bias", jnp.zeros(num_outputs))


def vae(images, hidden=5, num_latents=2, num_records=None):
    """The seed's decoder, smaller."""
    num_pixels = images.shape[1]
    first, first_bias = dense("decoder1", num_latents, hidden)
    second, second_bias = dense("decoder2", hidden, num_pixels)
    with numpyro.plate("batch", num_records or images.shape[0], subsample_size=images.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([num_latents]).to_event(1))
        logits = jax.nn.softplus(z @ first + first_bias) @ second + second_bias
        numpyro.sample("images", dist.Bernoulli(logits=logits).to_event(1), obs=images)


def vae_guide(images, hidden=5, num_latents=2, num_records=None):
    """The seed's encoder, smaller."""
    first, first_bias = dense("encoder1", images.shape[1], hidden)
    to_loc, loc_bias = dense("encoder_loc", hidden, num_latents)
    to_scale, scale_bias = dense("encoder_scale", hidden, num_latents)
    with numpyro.plate("batch", num_records or images.shape[0], subsample_size=images.shape[0]):
        features = jax.nn.softplus(images @ first + first_bias)
        loc, scale = features @ to_loc + loc_bias, jnp.exp(features @ to_scale + scale_bias)
        numpyro.sample("z", dist.Normal(loc, scale).to_event(1))


SHARED = {
    "normal mean": Case(normal_mean, (real,), guide=normal_mean_guide),
    "logistic, keywords": Case(logistic, (x,), {"y": label}, guide=logistic_guide),
    "logistic, whole table named": Case(
        logistic, (x, label), {"num_records": 10 * N}, guide=logistic_guide
    ),
    "subsampled by index": Case(
        subsampled_by_index, (x, real), {"batch_size": 2}, whole={"batch_size": None}
    ),
    "subsampled by statement": Case(
        subsampled_by_statement, (x, count), {"batch_size": 2}, whole={"batch_size": None}
    ),
    "hierarchical logistic": Case(
        hierarchical_logistic,
        (x, label, group, jnp.eye(GROUPS, 2), N),
        public=("gs",),
        guide=hierarchical_logistic_guide,
    ),
    "varying intercepts": Case(varying_intercepts, (x, group, real)),
    "mixture": Case(mixture, (x,)),
    "supports": Case(supports, (x, real)),
    "reparameterised": Case(reparameterised, (x, real)),
    "masked and scaled": Case(masked_and_scaled, (real, label == 1, positive)),
    "factors": Case(factors, (x, real)),
    "nested plates": Case(nested_plates, (x,)),
    "random network": Case(random_network, (x, real)),
    "counts with zeros": Case(counts_with_zeros, (x, count, positive)),
    "table of columns": Case(table_of_columns, ({"group": group, "spent": positive},)),
    "flat prior": Case(flat_prior, (real,)),
    "conditioned": Case(conditioned, (x, real)),
    "drifting": Case(drifting, (x, real)),
}
"""Programs whose latents are shared by all records; their parameters all have priors."""

LOCAL = {
    "mixed effects": Case(mixed_effects, (x, _random[:, 2:4]), guide=mixed_effects_guide),
    "missing outcomes": Case(missing_outcomes, (real, label == 1), guide=missing_outcomes_guide),
    "vae": Case(vae, ((_random > 0).astype(jnp.float32),), guide=vae_guide),
}
"""Programs with latents of the records' own, and guides for them."""
