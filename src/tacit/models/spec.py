"""Configurations as JSON and back: names and plain values only, nothing that can run."""

import dataclasses
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from tacit.errors import InvalidArgumentError
from tacit.models.front_end import FixedFrontEnd, Whitened
from tacit.models.layers import Activation
from tacit.models.likelihoods import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    PoissonCounts,
)
from tacit.models.networks import CNN, MLP, AveragePool, Conv, EmbeddingBag, MaxPool
from tacit.models.priors import FlatPrior, GaussianPrior, LaplacePrior, PerLeafPrior
from tacit.models.scattering import Scattering

__all__ = ["LIKELIHOODS", "NETWORKS", "PRIORS", "decode", "encode"]

NETWORKS: tuple[type, ...] = (MLP, CNN, EmbeddingBag, FixedFrontEnd)
PRIORS: tuple[type, ...] = (GaussianPrior, LaplacePrior, FlatPrior, PerLeafPrior)
LIKELIHOODS: tuple[type, ...] = (
    Categorical,
    Bernoulli,
    FixedGaussian,
    LearntGaussian,
    HeteroscedasticGaussian,
    PoissonCounts,
)
_PARTS: tuple[type, ...] = (Conv, MaxPool, AveragePool, *PRIORS, Scattering, Whitened, MLP, CNN)


def encode(config: Any) -> Any:
    """Returns a configuration as JSON-able values, each dataclass with its ``kind``.

    Example:
      >>> encode(GaussianPrior(std=0.1))
      {'kind': 'GaussianPrior', 'std': 0.1}
    """
    if dataclasses.is_dataclass(config):
        fields = {f.name: encode(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return {"kind": type(config).__name__} | fields
    if isinstance(config, tuple):
        return [encode(item) for item in config]
    if isinstance(config, str):
        return str(config)
    if config is None:
        return None
    # Numbers may be NumPy's, which json refuses.
    return int(config) if isinstance(config, Integral) else float(config)


def decode(spec: Any, kinds: tuple[type, ...]) -> Any:
    """Returns the configuration that ``encode`` described, which must be of one of ``kinds``.

    Raises:
      InvalidArgumentError: if the description names something unknown or does not fit it.

    Example:
      >>> decode({"kind": "GaussianPrior", "std": 0.1}, PRIORS)
      GaussianPrior(std=0.1)
    """
    names = [kind.__name__ for kind in kinds]
    named = spec.get("kind") if isinstance(spec, Mapping) else spec
    if not isinstance(spec, Mapping) or named not in names:
        raise InvalidArgumentError(f"kind must be one of {', '.join(names)}; got {named!r}.")
    kind = kinds[names.index(named)]
    hints = typing.get_type_hints(kind)
    fields = {name: value for name, value in spec.items() if name != "kind"}
    required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
    unknown, missing = fields.keys() - hints.keys(), required - fields.keys()
    if unknown or missing:
        raise InvalidArgumentError(
            f"the description of {kind.__name__} has unknown fields {sorted(unknown)} and lacks "
            f"{sorted(missing)}; it may come from another version of tacit."
        )
    return kind(**{name: _value(value, hints[name]) for name, value in fields.items()})


def _value(value: Any, hint: Any) -> Any:
    if hint is Activation:
        if value not in tuple(Activation):
            raise InvalidArgumentError(
                f"activation must be one of {', '.join(Activation)}; got {value!r}."
            )
        return Activation(value)
    if isinstance(value, list | tuple):
        return tuple(_value(item, None) for item in value)
    if isinstance(value, Mapping):
        return decode(value, _PARTS)
    if isinstance(value, str | Real) or (value is None and type(None) in typing.get_args(hint)):
        return value
    raise InvalidArgumentError(f"a description holds plain values only; got {value!r}.")
