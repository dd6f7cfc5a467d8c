"""Bags of embeddings, for texts and for sets of categories."""

import dataclasses

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.models import layers
from tacit.models.activations import Activation
from tacit.models.mlp import MLP, check_dense
from tacit.typing import Array, Input, Key, Params

__all__ = ["EmbeddingBag"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingBag:
    """The mean of the embeddings of an input's tokens, then dense layers.

    An input is a vector of whole numbers from 0 to ``num_tokens - 1``; negative ones are padding
    and do not count. A token beyond the range makes the output NaN. The vocabulary is part of
    the configuration: it must be public, not collected from private records. The parameters are
    ``{"embedding": {"table"}, "dense_0": {"kernel", "bias"}, ...}``.

    Attributes:
      num_tokens: the size of the vocabulary.
      num_features: the length of an embedding.
      hidden: the width of each hidden dense layer; may be empty.
      num_outputs: how many numbers come out.
      activation: what follows each hidden layer.
      dropout: the probability of dropping an entry of the mean embedding or a hidden unit, in
        training and in prediction alike.

    Example:
      >>> network = EmbeddingBag(num_tokens=100, num_features=8, num_outputs=2)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jnp.array([5, 17, 99, -1]), jax.random.key(1)).shape
      (2,)
    """

    num_tokens: int
    num_features: int
    hidden: tuple[int, ...] = ()
    num_outputs: int
    activation: Activation = Activation.RELU
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dense(self.hidden, self.num_outputs, self.activation, self.dropout)
        _check.positive_integer(num_tokens=self.num_tokens, num_features=self.num_features)

    @property
    def head(self) -> MLP:
        """The dense layers behind the mean embedding."""
        return MLP(
            num_inputs=self.num_features,
            hidden=self.hidden,
            num_outputs=self.num_outputs,
            activation=self.activation,
            dropout=self.dropout,
        )

    def init(self, key: Key) -> Params:
        """Draws standard normal embeddings, and a head scaled for the activation."""
        table_key, head_key = jax.random.split(key)
        table = layers.init_normal(table_key, (self.num_tokens, self.num_features))
        return {"embedding": {"table": table}, **self.head.init(head_key)}

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one vector of tokens to ``(num_outputs,)``; the key draws what is dropped."""
        tokens = jnp.asarray(x)
        if tokens.ndim != 1 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise InvalidArgumentError(
                "an input must be a vector of whole-number tokens, with negative ones for "
                f"padding; got shape {tokens.shape} and dtype {tokens.dtype}."
            )
        bag = layers.mean_embedding(params["embedding"]["table"], tokens)
        bag = layers.dropout(key, bag, rate=self.dropout, place=0)
        return self.head.apply(params, bag, key)
