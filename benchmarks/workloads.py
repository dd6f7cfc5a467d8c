"""The workloads: a loss of one record, its parameters and its records, by name.

Nothing here is private. The losses are written as a user would write them: with tacit's networks,
with Flax, with NumPyro, or as plain functions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from experiments.architectures import zhang_mnist_cnn
from flax import linen
from jax import lax
from numpyro.infer import Trace_ELBO

from tacit.models import MLP, Categorical, EmbeddingBag, GaussianPrior, Model, bayesian, layers
from tacit.models.base import Network
from tacit.privacy.clipping.unfolding import unfolded
from tacit.typing import Array, Input, Key, Params, Record, Scalar, Tree

__all__ = ["WORKLOADS", "Workload", "mlp"]

Loss: TypeAlias = Callable[[Params, Tree, Record, Key], Scalar]
Records: TypeAlias = Callable[[np.random.Generator, int], Record]
Targets: TypeAlias = Mapping[str, float]

_NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained.

    Attributes:
      name: the identifier in tables and results.
      batches: the batch sizes that are measured, each with what is aimed at: the largest ratio, or
        the least speedup, by the name of the result.
      init: draws parameters.
      records: draws a table of so many records.
      loss: ``loss(params, shared, record, key)`` of ONE record.
      shared: what all records of a step have in common, from a key; nothing for most.
      num_records: how many records the table of a step has.
      rewritten: the same loss in operations that are faster in a loop, for a second plain step.
      divergence: a term of a plain step that sees no record, for the whole table.
      guided: a model over whose parameters `init` is a mean-field Gaussian. Then tacit runs its
        `VI` on this model; else its `SGD` on the loss.
    """

    name: str
    batches: Mapping[int, Targets]
    init: Callable[[Key], Params]
    records: Records
    loss: Loss
    shared: Callable[[Key], Tree] = lambda key: None
    num_records: int = 60_000
    rewritten: Loss | None = None
    divergence: Callable[[Params], Scalar] | None = None
    guided: Model | None = None


def _table(x: np.ndarray, y: np.ndarray) -> Record:
    return Record(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(x)))


def _real(*shape: int) -> Records:
    """Records of normal inputs of this shape and random classes."""

    def records(rng: np.random.Generator, num_records: int) -> Record:
        x = rng.standard_normal((num_records, *shape), np.float32)
        return _table(x, rng.integers(_NUM_CLASSES, size=num_records))

    return records


def _tokens(length: int, vocabulary: int) -> Records:
    """Records of random tokens and random binary classes."""

    def records(rng: np.random.Generator, num_records: int) -> Record:
        x = rng.integers(vocabulary, size=(num_records, length))
        return _table(x, rng.integers(2, size=num_records))

    return records


def _binary(length: int) -> Records:
    """Records of random black and white pixels; there is nothing to predict."""

    def records(rng: np.random.Generator, num_records: int) -> Record:
        x = rng.integers(2, size=(num_records, length)).astype(np.float32)
        return _table(x, np.zeros(num_records, np.int32))

    return records


def _cross_entropy(outputs: Callable[[Params, Tree, Input, Key], Array]) -> Loss:
    def loss(params: Params, shared: Tree, record: Record, key: Key) -> Scalar:
        logits = outputs(params, shared, record.x, key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, record.y)

    return loss


def _of_network(network: Network) -> Loss:
    return _cross_entropy(lambda params, shared, x, key: network.apply(params, x, key))


def mlp(*hidden: int, batches: Mapping[int, Targets]) -> Workload:
    """Returns 784 inputs, hidden layers with ReLU, ten classes."""
    network = MLP(num_inputs=784, hidden=hidden, num_outputs=_NUM_CLASSES)
    return Workload(
        name="-".join(map(str, ("mlp", 784, *hidden, _NUM_CLASSES))),
        batches=batches,
        init=network.init,
        records=_real(784),
        loss=_of_network(network),
    )


def _cnn() -> Workload:
    network = zhang_mnist_cnn()
    targets = {
        "step_ratio": 1.4,
        "speedup_over.opacus_hooks": 1.2,
        "speedup_over.opacus_ghost": 1.2,
    }

    def by_products(params: Params, shared: None, x: Array, key: Key) -> Array:
        """The same network, its convolutions as products of kernels and patches."""
        for name, padding in (("conv_0", 3), ("conv_1", 0)):
            x = jax.nn.relu(_product_with_patches(params[name], x, stride=2, padding=padding))
            x = layers.max_pool(x, window=(2, 2), stride=(1, 1))
        return _affine(params["dense_1"], jax.nn.relu(_affine(params["dense_0"], x.ravel())))

    return Workload(
        name="cnn-mnist",
        batches={256: targets, 1024: targets},
        init=network.init,
        records=_real(28, 28, 1),
        loss=_of_network(network),
        rewritten=_cross_entropy(by_products),
    )


def _product_with_patches(
    layer: Mapping[str, Array], x: Array, *, stride: int, padding: int
) -> Array:
    """A convolution in the way in which the engine computes it."""
    kernel = layer["kernel"]
    names = lax.conv_dimension_numbers((1, *x.shape), kernel.shape, ("NHWC", "HWIO", "NHWC"))
    settings = {
        "dimension_numbers": names,
        "padding": ((padding, padding), (padding, padding)),
        "window_strides": (stride, stride),
        "rhs_dilation": (1, 1),
        "precision": None,
        "preferred_element_type": None,
    }
    return unfolded(x[None], kernel, settings)[0] + layer["bias"]


class _Block(linen.Module):
    """Attention and a dense layer, both residual behind a layer norm; then the mean and a head."""

    num_features: int
    num_heads: int = 4

    @linen.compact
    def __call__(self, x: Array) -> Array:
        x = x + linen.MultiHeadDotProductAttention(num_heads=self.num_heads)(linen.LayerNorm()(x))
        wide = linen.gelu(linen.Dense(4 * self.num_features)(linen.LayerNorm()(x)))
        x = x + linen.Dense(self.num_features)(wide)
        return linen.Dense(_NUM_CLASSES)(linen.LayerNorm()(x).mean(axis=0))


def _transformer(length: int = 32, num_features: int = 64) -> Workload:
    block = _Block(num_features)
    return Workload(
        name="transformer-block",
        batches={64: {}},
        init=lambda key: block.init(key, jnp.zeros((length, num_features))),
        records=_real(length, num_features),
        loss=_cross_entropy(lambda params, shared, x, key: block.apply(params, x)),
        num_records=10_000,
    )


def _embedding(vocabulary: int = 20_000, length: int = 20) -> Workload:
    network = EmbeddingBag(num_tokens=vocabulary, num_features=64, num_outputs=2)
    return Workload(
        name="embedding-logistic",
        batches={256: {"bound_ratio": 0.6}},
        init=network.init,
        records=_tokens(length, vocabulary),
        loss=_of_network(network),
    )


def _dense(key: Key, *shape: int) -> dict[str, Array]:
    """A kernel, or a stack of them, and zero biases."""
    *stack, num_inputs, num_outputs = shape
    kernel = jax.random.normal(key, shape) / np.sqrt(num_inputs)
    return {"kernel": kernel, "bias": jnp.zeros((*stack, num_outputs))}


def _affine(layer: Mapping[str, Array], x: Array) -> Array:
    return x @ layer["kernel"] + layer["bias"]


def _scan_layers(depth: int = 6, width: int = 128) -> Workload:
    """Equal dense layers, their weights stacked and scanned over."""

    def init(key: Key) -> Params:
        stack_key, head_key = jax.random.split(key)
        return {
            "stack": _dense(stack_key, depth, width, width),
            "head": _dense(head_key, width, _NUM_CLASSES),
        }

    def outputs(params: Params, shared: None, x: Array, key: Key) -> Array:
        x, _ = lax.scan(lambda x, layer: (jnp.tanh(_affine(layer, x)), None), x, params["stack"])
        return _affine(params["head"], x)

    return Workload(
        name="scan-layers",
        batches={256: {"step_ratio": 1.7}},
        init=init,
        records=_real(width),
        loss=_cross_entropy(outputs),
    )


def _rnn(length: int = 20, num_inputs: int = 32, width: int = 64) -> Workload:
    """An Elman network: the same weights at every time."""

    def init(key: Key) -> Params:
        into_key, over_key, head_key = jax.random.split(key, 3)
        return {
            "into": _dense(into_key, num_inputs, width),
            "over": {"kernel": _dense(over_key, width, width)["kernel"]},
            "head": _dense(head_key, width, _NUM_CLASSES),
        }

    def outputs(params: Params, shared: None, x: Array, key: Key) -> Array:
        def advance(hidden: Array, now: Array) -> tuple[Array, None]:
            return jnp.tanh(_affine(params["into"], now) + hidden @ params["over"]["kernel"]), None

        hidden, _ = lax.scan(advance, jnp.zeros(width), x)
        return _affine(params["head"], hidden)

    return Workload(
        name="rnn",
        batches={256: {"step_ratio": 1.9}},
        init=init,
        records=_real(length, num_inputs),
        loss=_cross_entropy(outputs),
    )


def _variational(prior_std: float = 0.1) -> Workload:
    """A Gaussian over the weights, one reparameterised draw for the whole batch."""
    network = MLP(num_inputs=784, hidden=(400, 400), num_outputs=_NUM_CLASSES)

    def init(key: Key) -> Params:
        mean = network.init(key)
        return {"mean": mean, "rho": jax.tree.map(lambda leaf: jnp.full_like(leaf, -4.0), mean)}

    def outputs(params: Params, shared: Tree, x: Array, key: Key) -> Array:
        weights = jax.tree.map(
            lambda mean, rho, noise: mean + jax.nn.softplus(rho) * noise,
            params["mean"],
            params["rho"],
            shared,
        )
        return network.apply(weights, x, key)

    def divergence(params: Params) -> Scalar:
        def of_leaf(mean: Array, rho: Array) -> Scalar:
            std = jax.nn.softplus(rho)
            return jnp.sum((mean**2 + std**2) / (2 * prior_std**2) - jnp.log(std))

        leaves = jax.tree.map(of_leaf, params["mean"], params["rho"])
        return sum(jax.tree.leaves(leaves), jnp.zeros(()))

    return Workload(
        name="variational-784-400-400-10",
        batches={256: {"step_ratio": 1.8}},
        init=init,
        records=_real(784),
        loss=_cross_entropy(outputs),
        shared=lambda key: optax.tree.random_like(key, jax.eval_shape(network.init, key)),
        divergence=divergence,
        guided=bayesian(
            network,
            prior=GaussianPrior(std=prior_std),
            likelihood=Categorical(num_classes=_NUM_CLASSES),
        ),
    )


def _vae(num_pixels: int = 784, width: int = 400, num_latents: int = 50) -> Workload:
    """A variational autoencoder as a NumPyro program; each record has its own latent draw."""

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 5)
        return {
            "encoder": {
                "hidden": _dense(keys[0], num_pixels, width),
                "location": _dense(keys[1], width, num_latents),
                "log_scale": _dense(keys[2], width, num_latents),
            },
            "decoder": {
                "hidden": _dense(keys[3], num_latents, width),
                "logits": _dense(keys[4], width, num_pixels),
            },
        }

    def model(x: Array) -> None:
        decoder: Any = numpyro.param("decoder")
        z = numpyro.sample("z", dist.Normal(jnp.zeros(num_latents), 1.0).to_event(1))
        hidden = jax.nn.softplus(_affine(decoder["hidden"], z))
        logits = _affine(decoder["logits"], hidden)
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    def guide(x: Array) -> None:
        encoder: Any = numpyro.param("encoder")
        hidden = jax.nn.softplus(_affine(encoder["hidden"], x))
        location = _affine(encoder["location"], hidden)
        scale = jnp.exp(_affine(encoder["log_scale"], hidden))
        numpyro.sample("z", dist.Normal(location, scale).to_event(1))

    def loss(params: Params, shared: None, record: Record, key: Key) -> Scalar:
        return Trace_ELBO().loss(key, params, model, guide, record.x)

    return Workload(
        name="vae-numpyro",
        batches={128: {"step_ratio": 1.7}},
        init=init,
        records=_binary(num_pixels),
        loss=loss,
    )


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        mlp(1200, 1200, batches={256: {"step_ratio": 1.7}, 1024: {"step_ratio": 1.3}}),
        mlp(512, batches={256: {"step_ratio": 1.8}}),
        _cnn(),
        _transformer(),
        _embedding(),
        _scan_layers(),
        _rnn(),
        _variational(),
        _vae(),
    )
}
"""All of them, in the order of the table."""
