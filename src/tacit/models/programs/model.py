"""Programs as models: the same NumPyro program for every method that samples."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import (
    BernoulliLogits,
    BernoulliProbs,
    CategoricalLogits,
    CategoricalProbs,
)
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import _unconstrain_reparam, compute_log_probs, constrain_fn
from numpyro.ops.provenance import eval_provenance

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.models.base import Model, Moments, Prediction, Simulator
from tacit.models.programs.analysis import Analysis, analyse_program
from tacit.models.programs.arguments import (
    Arguments,
    Call,
    RecordRows,
    blank_records,
    shapes_with_rows,
    signature_of,
)
from tacit.models.programs.sites import Traced, in_plate
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = ["ProgramPrior", "constrained", "from_program", "prediction_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPrior:
    """The log prior of a program's latents, unconstrained, with the Jacobians of their supports.

    Attributes:
      model: the program.
      build: puts records into a call; holds no record.
      plate: the record plate.
      blank: one made-up record, for programs that take shapes from records.
      modules: what modules with random weights keep beside them; no numbers.
      start: NumPyro's rule for initial values.
    """

    model: Callable[..., Any]
    build: Callable[[Sequence[Array]], Call]
    plate: str
    blank: Sequence[Array]
    modules: Mapping[str, Any]
    start: Callable[..., Any]

    def __call__(self, params: Params) -> Scalar:
        """Returns the log density of the latents; no record is in it."""

        # As an argument the blank record is traced: nobody can stumble over its values.
        @jax.jit
        def on_blank(params: Params, blank: Sequence[Array]) -> Scalar:
            sites, densities = self.run(params, blank, jax.random.key(0))
            return _total(densities, lambda name: not in_plate(sites[name], self.plate))

        return on_blank(params, self.blank)

    def log_likelihood(self, params: Params, rows: Sequence[Array], key: Key) -> Scalar:
        """Returns the log density of one record, whose arrays have one row each."""
        sites, densities = self.run(params, rows, key)
        return _total(densities, lambda name: in_plate(sites[name], self.plate))

    def init(self, key: Key) -> Params:
        """Returns latents to start from, by NumPyro's rule; no record is read."""
        return self._latents(substitute(seed(self._on_one(None), key), substitute_fn=self.start))

    def draw(self, key: Key) -> Params:
        """Returns latents drawn from the prior; no record is read."""
        return self._latents(seed(self._on_one(None), key))

    def _latents(self, program: Callable[..., Any]) -> Params:
        args, kwargs = self.build(self.blank)
        with numpyro.validation_enabled(False):
            sites = trace(program).get_trace(*args, **kwargs)
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    def constrained(self, draws: Params) -> dict[str, Array]:
        """Returns draws of the latents in their own spaces; draws have a leading axis."""
        args, kwargs = self.build(self.blank)
        model = seed(self._on_one(None), jax.random.key(0))
        found: dict[str, Array] = constrain_fn(model, args, kwargs, draws, batch_ndims=1)
        return found

    def run(self, params: Params, rows: Sequence[Array], key: Key) -> Traced:
        """Returns the sites and their densities, Jacobians among them, as NumPyro's potential."""
        args, kwargs = self.build(rows)
        model = seed(self._on_one(key), jax.random.key(0))
        model = substitute(model, substitute_fn=partial(_unconstrain_reparam, params))
        densities, sites = compute_log_probs(model, args, kwargs, {})
        return sites, densities

    def _on_one(self, record_key: Key | None) -> Callable[..., Any]:
        rows = RecordRows(
            self.model,
            plate=self.plate,
            num_rows=1,
            takes_key=False,
            record_key=record_key,
        )
        model: Callable[..., Any] = substitute(rows, data=dict(self.modules))
        return model


def _total(densities: Mapping[str, Scalar], keep: Callable[[str], bool]) -> Scalar:
    return sum((value for name, value in densities.items() if keep(name)), start=jnp.zeros(()))


def prediction_of(distribution: Any) -> Prediction:
    """Returns class probabilities of a Bernoulli or categorical target, moments of any other.

    Args:
      distribution: of one record's target; it may have axes of length one in front.
    """
    base = distribution
    while hasattr(base, "base_dist"):
        base = base.base_dist
    if isinstance(base, BernoulliLogits | BernoulliProbs) and jnp.size(base.probs) == 1:
        probability = jnp.reshape(base.probs, ())
        return jnp.stack([1.0 - probability, probability])
    is_categorical = isinstance(base, CategoricalLogits | CategoricalProbs)
    if is_categorical and jnp.size(base.probs) == base.probs.shape[-1]:
        return jnp.reshape(base.probs, (-1,))
    return Moments(_of_one(distribution.mean), _of_one(distribution.variance))


def _of_one(values: Array) -> Array:
    """Drops axes of length one: those of a single record and of its single target."""
    return jnp.squeeze(values)


def from_program(
    model: Callable[..., Any],
    records: Record,
    *,
    arguments: Callable[[Record], Call] | None = None,
    plate: str | None = None,
    target: str | None = None,
    start: Callable[..., Any] = init_to_uniform,
) -> Model:
    """Returns a NumPyro model as a `Model`, for every method that samples or optimises.

    The parameters are the latents that all records share, unconstrained: ``{site: array}``. Log
    prior plus all log likelihoods is minus NumPyro's potential energy.

    Args:
      model: a NumPyro model with its records in one plate.
      records: the table; only its shapes and dtypes are read, and shapes will do.
      arguments: ``arguments(rows)`` gives the ``(args, kwargs)`` of a call for a few records; by
        default the model is called as ``model(x, y)``.
      plate: the name of the record plate; found where it is not given.
      target: the observed site that is predicted; needed to predict if there are several.
      start: NumPyro's rule for initial values.

    Raises:
      InvalidArgumentError: if the program is not called in this way, cannot be split, has latents
        of its own for each record, or parameters without a prior.

    Example:
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> from tacit import as_records
      >>> def program(x, y):
      ...     weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
      ...     with numpyro.plate("records", x.shape[0]):
      ...         numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)
      >>> model = from_program(program, as_records(jnp.ones((5, 2)), jnp.ones(5)))
      >>> model.predict({"weights": jnp.zeros(2)}, jnp.ones(2), jax.random.key(0))
      Array([0.5, 0.5], dtype=float32)
    """
    call = _arguments(records, arguments or _x_and_y)
    _require_callable(model, call)
    found = analyse_program(model, None, call, plate=plate)
    _require_shared_latents_only(found)
    prior = ProgramPrior(
        model=model,
        build=call.build,
        plate=found.program.plate,
        blank=found.blank,
        modules=found.params,
        start=start,
    )

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        return prior.log_likelihood(params, _rows(record.x, record.y), key)

    site = _target(found, target)
    predict = _predict(prior, found, records.x, site)
    simulator = None
    if len(site) == len(jax.tree.leaves(records.y)) == 1:
        simulator = Simulator(prior.draw, _drawn_target(prior, found, records.x, site[0]))
    return Model(prior.init, prior, log_likelihood, predict, simulator=simulator)


def constrained(model: Model, draws: Params) -> dict[str, Array]:
    """Returns posterior draws of a program's latents in their own spaces.

    They are what ``numpyro.infer.Predictive`` takes as ``posterior_samples``.

    Args:
      model: what `from_program` returned.
      draws: unconstrained latents with a leading axis, as ``Posterior.draws`` gives them.

    Example:
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> from tacit import as_records
      >>> def program(x, y):
      ...     scale = numpyro.sample("scale", dist.HalfNormal(1))
      ...     with numpyro.plate("records", len(y)):
      ...         numpyro.sample("y", dist.Normal(0, scale), obs=y)
      >>> model = from_program(program, as_records(jnp.ones((5, 2)), jnp.ones(5)))
      >>> constrained(model, {"scale": jnp.zeros(3)})
      {'scale': Array([1., 1., 1.], dtype=float32)}
    """
    if not isinstance(model.log_prior, ProgramPrior):
        raise InvalidArgumentError("model must be what from_program returned; got another model.")
    return model.log_prior.constrained(draws)


def _x_and_y(rows: Record) -> Call:
    return (rows.x, rows.y), {}


def _rows(x: Input, y: Array) -> list[Array]:
    return [jnp.asarray(leaf)[None] for leaf in jax.tree.leaves((x, y))]


def _arguments(records: Record, call: Callable[[Record], Call]) -> Arguments:
    """The table as arguments; in a table of persons, one row of a person is a record here."""
    leaves, tree = jax.tree.flatten((records.x, records.y))
    num_records = _tree.num_records(leaves)
    if records.mask is not None:
        leaves = [jax.eval_shape(lambda leaf: leaf[:, 0], leaf) for leaf in leaves]

    def build(rows: Sequence[Array]) -> Call:
        x, y = jax.tree.unflatten(tree, rows)
        return call(Record(x, y, jnp.ones(rows[0].shape[0])))

    names = tuple(f"records[{at}]" for at in range(len(leaves)))
    return Arguments(list(leaves), build, num_records, names)


def _require_callable(model: Callable[..., Any], call: Arguments) -> None:
    """Raises where the call does not fit the program's signature, before it is run."""
    args, kwargs = call.build(blank_records(shapes_with_rows(call.records, 1)))
    signature = signature_of(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        # Names only: a default may be a table.
        empty = inspect.Parameter.empty
        takes = signature.replace(
            parameters=[
                each.replace(default=empty, annotation=empty)
                for each in signature.parameters.values()
            ],
            return_annotation=empty,
        )
        given = ", ".join(["_"] * len(args) + [f"{name}=_" for name in kwargs])
        raise InvalidArgumentError(
            f"the program takes {takes} but is called as model({given}): {error}. By default"
            " that is model(x, y); say otherwise by arguments=, such as arguments=lambda rows:"
            ' ((), {"x": rows.x, "y": rows.y}), or ((rows.y,), {}) for one argument.'
        ) from None


def _require_shared_latents_only(found: Analysis) -> None:
    for name, site in found.facts.items():
        if site.kind == "param" and site.num_values > 0:
            raise InvalidArgumentError(
                f"the parameter {name!r} has no prior, so it has no posterior. Draw it by"
                " numpyro.sample, or a module's weights by random_flax_module; or use"
                " tacit.numpyro.DPSVI, which optimises it."
            )
        is_latent = site.kind == "sample" and not site.is_observed
        if is_latent and found.program.plate in site.plates:
            raise InvalidArgumentError(
                f"the latent {name!r} belongs to a record (it is in the record plate"
                f" {found.program.plate!r}); a sampler would have to keep a value of its own for"
                " each record. Use tacit.numpyro.DPSVI with an amortised guide, or sum it out."
            )


def _target(found: Analysis, target: str | None) -> list[str]:
    """Returns the observed site that is predicted; all of them where it is not known which."""
    observed = [
        name
        for name, site in found.facts.items()
        if site.is_observed and not site.is_auxiliary and found.program.plate in site.plates
    ]
    if target is not None and target not in observed:
        raise InvalidArgumentError(f"target must be one of {observed}; got {target!r}.")
    return observed if target is None else [target]


def _drawn_target(
    prior: ProgramPrior, found: Analysis, x: Input, site: str
) -> Callable[[Params, Input, Key], Array]:
    """Returns how the target of one input is drawn."""
    blank_y = found.blank[len(jax.tree.leaves(x)) :]

    def draw(params: Params, x: Input, key: Key) -> Array:
        record_key, target_key = jax.random.split(key)
        sites, _ = prior.run(params, [*_rows(x, jnp.zeros(()))[:-1], *blank_y], record_key)
        value = sites[site]["fn"].sample(target_key)
        return jnp.reshape(value, jnp.shape(blank_y[0])[1:]).astype(blank_y[0].dtype)

    return draw


def _predict(
    prior: ProgramPrior, found: Analysis, x: Input, observed: Sequence[str]
) -> Callable[[Params, Input, Key], Prediction]:
    """Returns the prediction of the target, or a function that says why there is none."""
    if len(observed) != 1:
        return _refuse(f"it observes {observed}. Say which is predicted by target=")
    site = observed[0]
    num_inputs = len(jax.tree.leaves(x))
    blank_y = list(found.blank[num_inputs:])

    def predict(params: Params, x: Input, key: Key) -> Prediction:
        return of_rows(params, [*_rows(x, jnp.zeros(()))[:-1], *blank_y], key)

    def of_rows(params: Params, rows: Sequence[Array], key: Key) -> Prediction:
        sites, _ = prior.run(params, rows, key)
        return prediction_of(sites[site]["fn"])

    def of_y(y: Sequence[Array]) -> Prediction:
        key = jax.random.key(0)
        return of_rows(prior.init(key), [*found.blank[:num_inputs], *y], key)

    try:
        origins = eval_provenance(of_y, y=blank_y)
    except NotImplementedError:
        return _refuse(f"the distribution of {site!r} has no mean or variance in closed form")
    if any(jax.tree.leaves(origins, is_leaf=_is_origin)):
        return _refuse(f"the distribution of {site!r} depends on the target itself")
    return predict


def _refuse(why: str) -> Callable[[Params, Input, Key], Prediction]:
    def predict(params: Params, x: Input, key: Key) -> Prediction:
        del params, x, key
        raise InvalidArgumentError(
            f"this program has no prediction for one input: {why}. numpyro.infer.Predictive works"
            " with the draws that tacit.models.programs.model.constrained returns."
        )

    return predict


def _is_origin(value: object) -> bool:
    return isinstance(value, frozenset)
