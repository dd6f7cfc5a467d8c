"""Export to ArviZ: draws and predictions, never the records."""

from typing import Any

import jax
import numpy as np
from numpyro.handlers import seed as seeded
from numpyro.handlers import trace
from numpyro.infer import Predictive

from tacit.errors import InvalidArgumentError, TacitError
from tacit.numpyro.posterior import ProgramPosterior

__all__ = ["to_arviz"]


def to_arviz(
    posterior: ProgramPosterior, *args: Any, num_draws: int = 1000, seed: int = 0, **kwargs: Any
) -> Any:
    """Returns draws of the latents and predictions as ArviZ's ``InferenceData``.

    Guarantee:
      There are two groups, ``posterior`` and ``posterior_predictive``, both computed from released
      parameters and the arguments of this call. The groups for observed and constant data, in
      which ArviZ keeps the records, are not made, and a call that observes anything is refused.

    Args:
      posterior: what to export.
      *args: arguments of the model: public inputs, and None for what is predicted.
      num_draws: how many draws.
      seed: of the draws; nothing private hangs on it.
      **kwargs: keyword arguments of the model.
    """
    try:
        import arviz  # noqa: PLC0415, an extra
    except ImportError:
        raise TacitError(
            "to_arviz needs ArviZ, which is not installed: pip install tacit[arviz]."
        ) from None
    _require_nothing_observed(posterior, args, kwargs)
    latents = posterior.draws(*args, num_draws=num_draws, seed=seed, **kwargs)
    predict = Predictive(posterior.model, latents, params=posterior.params)
    predicted = predict(jax.random.key(seed + 1), *args, **kwargs)
    return arviz.from_dict(
        posterior=_as_one_chain(latents),
        posterior_predictive=_as_one_chain(predicted),
        attrs={"epsilon": posterior.statement.get("epsilon_text", "unknown")},
    )


def _as_one_chain(draws: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value)[None] for name, value in draws.items()}


def _require_nothing_observed(
    posterior: ProgramPosterior, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    sites = trace(seeded(posterior.model, jax.random.key(0))).get_trace(*args, **kwargs)
    observed = [
        name for name, site in sites.items() if site["type"] == "sample" and site["is_observed"]
    ]
    if observed:
        raise InvalidArgumentError(
            f"the call must observe nothing; it observes {', '.join(observed)}, which would be"
            " exported as it is. Pass None for what the model is to predict; a model that always"
            " observes needs that argument optional: def model(x, y=None), with obs=y."
        )
