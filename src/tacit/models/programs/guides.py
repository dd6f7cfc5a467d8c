"""Guides: autoguides are set up on a blank record, so that they hold no private one."""

import copy
from collections.abc import Callable
from typing import Any

import numpyro
from numpyro.handlers import substitute
from numpyro.infer import autoguide
from numpyro.infer.initialization import init_to_uniform
from numpyro.primitives import Messenger

from tacit.errors import InvalidArgumentError
from tacit.models.programs.rows import RecordRows, in_plate

__all__ = [
    "adopt_set_up",
    "anywhere",
    "autoguides_of",
    "fresh_guide",
    "no_guide",
    "require_private_guide",
]

_READS_ALL_RECORDS = (
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    autoguide.AutoSurrogateLikelihoodDAIS,
    autoguide.AutoLaplaceApproximation,
)


def require_private_guide(guide: Any) -> None:
    """Raises for autoguides whose own working reads every record past the clip."""
    for part in autoguides_of(guide):
        if isinstance(part, _READS_ALL_RECORDS):
            raise InvalidArgumentError(
                f"guide must not be {type(part).__name__}: its own working (a Hessian, or steps"
                " along the likelihood) reads every record, past the clip. Use AutoNormal,"
                " AutoMultivariateNormal or AutoLowRankMultivariateNormal."
            )


def autoguides_of(guide: Any) -> list[Any]:
    """Returns the parts of a guide that NumPyro made, each with a model of its own."""
    if isinstance(guide, autoguide.AutoGuideList):
        return [part for each in guide for part in autoguides_of(each)]
    return [guide] if isinstance(guide, autoguide.AutoGuide) else []


def fresh_guide(guide: Any, plate: str) -> Any:
    """Returns a copy of an autoguide that was not set up; other guides as they are.

    An autoguide keeps what it was first called with, and looks at the model's density there. The
    copy's model has one row in its record plate and does not look at observations inside it.
    """
    if not isinstance(guide, autoguide.AutoGuide):
        return guide
    fresh = copy.copy(guide)
    for name, value in vars(guide).items():
        if isinstance(value, dict):
            setattr(fresh, name, dict(value))
    fresh.prototype_trace = None
    fresh.model = RecordRows(
        _Unobserved(guide.model, plate), plate=plate, num_rows=1, takes_key=False, record_key=None
    )
    if isinstance(guide, autoguide.AutoGuideList):
        fresh._guides = [fresh_guide(part, plate) for part in guide]
    return fresh


def adopt_set_up(guide: Any, fresh: Any) -> None:
    """Sets an autoguide up as its copy was, in place of whatever it kept before."""
    if not isinstance(guide, autoguide.AutoGuide):
        return
    own = {"model", "_guides"}
    vars(guide).update({name: value for name, value in vars(fresh).items() if name not in own})
    if isinstance(guide, autoguide.AutoGuideList):
        for part, fresh_part in zip(guide, fresh, strict=True):
            adopt_set_up(part, fresh_part)


def no_guide(*args: Any, **kwargs: Any) -> None:
    """A guide that leaves out every latent."""


def anywhere(model: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model with latents that are drawn from their supports, whatever their prior.

    Unlike the prior itself, this can be drawn from for every continuous latent.
    """

    def draw(site: Any) -> Any:
        is_latent = site["type"] == "sample" and not site["is_observed"]
        if not is_latent or site["value"] is not None or site["fn"].support.is_discrete:
            return None
        if site["kwargs"]["rng_key"] is None:
            site["kwargs"]["rng_key"] = numpyro.prng_key()
        return init_to_uniform(site)

    run: Callable[..., Any] = substitute(model, substitute_fn=draw)
    return run


class _Unobserved(Messenger):  # type: ignore[misc]
    """Leaves the observations in a plate out of the density."""

    def __init__(self, fn: Callable[..., Any], plate: str) -> None:
        super().__init__(fn)
        self._plate = plate

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and in_plate(msg, self._plate):
            msg["fn"] = msg["fn"].mask(False)
