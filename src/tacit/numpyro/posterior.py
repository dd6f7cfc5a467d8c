"""What is left of a run: parameters, draws and statement, ready to predict, save and publish."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.contrib.module import ParamShape
from numpyro.handlers import seed as seeded
from numpyro.handlers import trace
from numpyro.infer import Predictive

from tacit import _artefact, _check, _display
from tacit.errors import InvalidArgumentError, TacitError
from tacit.intervals import CredibleInterval, IntervalFacts, equal_tailed
from tacit.models.programs.arguments import signature_of, split_arguments
from tacit.models.programs.program import autoguides_of
from tacit.models.programs.split import split_program
from tacit.typing import Array, Params

__all__ = ["ProgramPosterior", "load_program_posterior", "to_arviz"]

if TYPE_CHECKING:
    from rich.panel import Panel


@dataclass(frozen=True, kw_only=True)
class ProgramPosterior:
    """The approximate posterior of a NumPyro program.

    Where the run's releases allow it, draws of the shared latents are corrected: they are as wide
    as the prior, the records and the known privacy noise make them. The guide's own, which leave
    the noise out, are those of `raw`.

    Guarantee:
      Everything here is computed from released parameters, and costs nothing. No record is in it,
      and none is written by `save`: autoguides remember what they were first called with, so only
      the values of parameters are saved, never the guide.

    Attributes:
      model: the NumPyro model.
      guide: the guide.
      params: values of the guide's parameters in their own spaces, averaged over the run, in which
        late steps weigh more. ``DPSVI.get_params`` gives those of the last step.
      statement: the privacy statement of the run, as JSON-able data.
      corrected: draws of the shared latents that count the privacy noise, each with a leading axis;
        None where the guide's own are used.
      intervals: what the widths of its intervals are made of, and why they may not hold.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    params: Params
    statement: Mapping[str, Any] = field(default_factory=dict)
    corrected: Mapping[str, Array] | None = None
    intervals: IntervalFacts = IntervalFacts()  # noqa: RUF009 (frozen)

    @property
    def raw(self) -> "ProgramPosterior | None":
        """The posterior as the guide has it, where this one is corrected."""
        if self.corrected is None:
            return None
        return replace(self, corrected=None, intervals=IntervalFacts())

    def __repr__(self) -> str:
        text = f"{', '.join(self.params)}; epsilon {self.statement.get('epsilon_text', 'unknown')}"
        if self.corrected is not None:
            text += "; corrected for privacy noise"
        if self.intervals.caveats:
            text += "; intervals with caveats"
        return f"ProgramPosterior({text})"

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        promise = self.statement
        rows = [
            ("parameters", ", ".join(self.params)),
            ("epsilon", str(promise.get("epsilon_text", "unknown"))),
        ]
        rows += [(key, f"{promise[key]}") for key in ("delta", "unit") if key in promise]
        rows += self.intervals.rows
        warning = _display.warning_of(
            epsilon=promise.get("epsilon"), is_secure=promise.get("is_secure", True)
        )
        return _display.Sheet(
            title="Posterior of a program",
            rows=rows,
            warning=warning,
            table=self.intervals.table,
        )

    def predictive(
        self, *, num_draws: int = 1000, return_sites: Any = None, seed: int = 0
    ) -> Predictive:
        """Returns NumPyro's `Predictive`: call it with a key and the model's arguments.

        Args:
          num_draws: how many draws of the latents.
          return_sites: names of sites; by default those that are not observed.
          seed: chooses among corrected draws; the guide's own come from the key of the call.
        """
        if self.corrected is not None:
            return Predictive(
                self.model,
                posterior_samples=self._chosen(num_draws, seed),
                params=self.params,
                return_sites=return_sites,
            )
        return Predictive(
            self.model,
            guide=self.guide,
            params=self.params,
            num_samples=num_draws,
            return_sites=return_sites,
        )

    def draws(
        self, *args: Any, num_draws: int = 1000, seed: int = 0, **kwargs: Any
    ) -> dict[str, Array]:
        """Returns draws of the latents, each with a leading axis.

        They are corrected for the privacy noise where they can be; otherwise they are the guide's.

        Args:
          *args: arguments of the guide; public ones, such as the inputs of a prediction. Corrected
            draws need none.
          num_draws: how many.
          seed: of the draws; nothing private hangs on it.
          **kwargs: keyword arguments of the guide.
        """
        if self.corrected is not None:
            return self._chosen(num_draws, seed)
        drawn = Predictive(self.guide, params=self.params, num_samples=num_draws)
        values: dict[str, Array] = drawn(jax.random.key(seed), *args, **kwargs)
        return {name: value for name, value in values.items() if not _is_auxiliary(name)}

    def _chosen(self, num_draws: int, seed: int) -> dict[str, Array]:
        """So many of the corrected draws, all of them before any comes again."""
        assert self.corrected is not None
        num_kept = len(next(iter(self.corrected.values())))
        generator = np.random.default_rng(seed)
        rounds = [generator.permutation(num_kept) for _ in range(-(-num_draws // num_kept))]
        indices = np.concatenate(rounds)[:num_draws]
        return {name: leaf[indices] for name, leaf in self.corrected.items()}

    def credible(
        self, level: float = 0.9, *args: Any, num_draws: int = 1000, seed: int = 0, **kwargs: Any
    ) -> CredibleInterval:
        """Returns equal-tailed intervals that hold each latent with posterior probability.

        Warns with `IntervalWarning` for every reason not to trust the intervals.

        Args:
          level: the posterior probability of each interval.
          *args: as in `draws`.
          num_draws: from how many draws.
          seed: as in `draws`.
          **kwargs: as in `draws`.
        """
        _check.fraction(one=False, level=level)
        drawn = self.draws(*args, num_draws=num_draws, seed=seed, **kwargs)
        self.intervals.warn()
        return equal_tailed(drawn, level=level)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes ``program.safetensors`` and ``program.json``: parameters, draws and statement.

        Warns with `PrivacyWarning` when the statement promises nothing, or the noise was seeded.
        """
        corrected = None if self.corrected is None else dict(self.corrected)
        document = {
            "statement": dict(self.statement),
            "layout": _layout(self.params, "params"),
            "corrected": _layout(corrected, "corrected"),
            "intervals": self.intervals.to_json(),
        }
        arrays = {
            **_artefact.flatten(self.params, prefix="params"),
            **_artefact.flatten(corrected, prefix="corrected"),
            **self.intervals.arrays(),
        }
        _artefact.write(directory, "program", arrays, document)
        _artefact.warn_before_publishing(self.statement)


def load_program_posterior(
    directory: str | os.PathLike[str],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    public: Collection[str] = (),
    **kwargs: Any,
) -> ProgramPosterior:
    """Returns a saved posterior; no training data is needed.

    Args:
      directory: where `ProgramPosterior.save` wrote it.
      model: the model of the run; functions are not saved.
      guide: its guide; a new autoguide of the same kind serves.
      *args: for a new autoguide, a call of the model as in training, with zeros for the records:
        it learns from it which sites are latent. Only shapes are used; two rows are enough.
      public: names of arguments that hold no record.
      **kwargs: keyword arguments of that call.
    """
    is_new = [part.prototype_trace is None for part in autoguides_of(guide)]
    if args or kwargs:
        arguments = split_arguments(args, kwargs, public=public, signature=signature_of(model))
        split_program(model, guide, arguments)
    elif any(is_new):
        raise InvalidArgumentError(
            f"guide is a {type(guide).__name__} that was never called, so it does not know which"
            " sites are latent. Add the arguments of a call as in training, with zeros for the"
            " records: load_program_posterior(directory, model, guide, jnp.zeros((2, 3)),"
            " jnp.zeros(2))."
        )
    arrays, document = _artefact.read(directory, "program")
    corrected = _restored(document.get("corrected"), arrays)
    shapes = jax.tree.map(lambda leaf: leaf[0], corrected)
    return ProgramPosterior(
        model=model,
        guide=guide,
        params=_restored(document["layout"], arrays),
        statement=document["statement"],
        corrected=corrected,
        intervals=IntervalFacts.from_json(document.get("intervals", {}), arrays, shapes),
    )


def _layout(tree: Any, name: str) -> Any:
    """Which arrays stand where in the containers that modules have their parameters in."""
    if isinstance(tree, ParamShape):
        # A weight that has a prior: NumPyro keeps its shape in the place of a number.
        return ["shape", *tree.shape]
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {key: _layout(value, f"{name}[{key!r}]") for key, value in tree.items()}
    if type(tree) in (list, tuple):
        items = [_layout(value, f"{name}[{at}]") for at, value in enumerate(tree)]
        return [type(tree).__name__, *items]
    if tree is None:
        return None
    if isinstance(tree, jax.Array):
        return ["array", name]
    raise TacitError(
        "parameters must be arrays in dictionaries, lists and tuples to be saved; got a"
        f" {type(tree).__name__} at {name}. Save its arrays yourself."
    )


def _restored(layout: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(layout, dict):
        return {key: _restored(value, arrays) for key, value in layout.items()}
    match layout:
        case ["array", name]:
            return jnp.asarray(arrays[name])
        case ["shape", *axes]:
            return ParamShape(tuple(axes))
        case ["tuple", *items]:
            return tuple(_restored(item, arrays) for item in items)
        case ["list", *items]:
            return [_restored(item, arrays) for item in items]
        case _:
            return None


def _is_auxiliary(name: str) -> bool:
    """Autoguides have one site for all latents together, beside a site for each."""
    return name.startswith("_") and name.endswith("_latent")


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
        attrs={
            "epsilon": posterior.statement.get("epsilon_text", "unknown"),
            "intervals": "; ".join(text for _, text in posterior.intervals.rows),
        },
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
