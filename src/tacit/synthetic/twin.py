"""A twin of a table: a NumPyro program over all its columns, of every type."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp, ndtr, ndtri
from numpy.typing import NDArray
from numpyro.distributions import Distribution, constraints
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_sample

from tacit import _check
from tacit.data import NumericColumn
from tacit.synthetic.rows import CONTINUOUS, RowCode
from tacit.typing import Array, Key

__all__ = ["RowMixture", "twin_guide", "twin_program"]

_LOG_ZERO = -1e30  # finite, so that no gradient becomes NaN
_ROOT_TWO_PI = np.sqrt(2.0 * np.pi)


class _Layout(NamedTuple):
    """Where the slots of all columns lie when they are written side by side.

    Attributes:
      owner: the column of each slot.
      number: which of its column's slots it is.
      shape: how many columns, and how many slots the largest has.
      numeric: which columns are numeric.
    """

    owner: NDArray[np.int64]
    number: NDArray[np.int64]
    shape: tuple[int, int]
    numeric: NDArray[np.int64]


@functools.cache
def _layout(code: RowCode) -> _Layout:
    counts = code.num_slots
    is_numeric = [isinstance(part, NumericColumn) for part in code.parts]
    return _Layout(
        owner=np.repeat(np.arange(len(counts)), counts),
        number=np.concatenate([np.arange(count) for count in counts]),
        shape=(len(counts), max(counts)),
        numeric=np.flatnonzero(is_numeric),
    )


class RowMixture(Distribution):  # type: ignore[misc]  # NumPyro has no types
    """A mixture over coded rows, with the component summed out.

    Within a component a column's slot is categorical and a number's position is normal, truncated
    to the range. Both are exponential families, so the log density of a row is

        log sum_k exp( log softmax(weights)_k + <statistics(row), parameters_k> ),

    one matrix product for a whole batch.

    Args:
      code: how rows are coded.
      weights: float[K], the logits of the components.
      levels: float[K, S], the logits of all slots of all columns, side by side.
      locs: float[K, D], where the positions of numeric columns concentrate, between 0 and 1.
      scales: float[K, D], how widely; not much below a hundredth, for the sake of rounding.
    """

    arg_constraints: ClassVar = {
        "weights": constraints.real_vector,
        "levels": constraints.real_matrix,
        "locs": constraints.independent(constraints.unit_interval, 2),
        "scales": constraints.independent(constraints.positive, 2),
    }
    support = constraints.real_vector
    pytree_data_fields = ("weights", "levels", "locs", "scales")
    pytree_aux_fields = ("code",)

    def __init__(
        self,
        code: RowCode,
        weights: Array,
        levels: Array,
        locs: Array,
        scales: Array,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.code = code
        self.weights, self.levels, self.locs, self.scales = weights, levels, locs, scales
        width = len(code.parts) + len(code.numeric)
        super().__init__(batch_shape=(), event_shape=(width,), validate_args=validate_args)

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """Returns the log density of coded rows: of slots by counting, of positions by length."""
        log_weights = jax.nn.log_softmax(self.weights)
        per_component = self._statistics(value) @ self._parameters().T
        return logsumexp(log_weights + per_component, axis=-1)

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> Array:
        """Returns coded rows."""
        of_component, of_slots, of_positions = jax.random.split(key, 3)
        component = jax.random.categorical(of_component, self.weights, shape=sample_shape)
        slots = jax.random.categorical(of_slots, self._log_slots()[component])
        locs, scales = self.locs[component], self.scales[component]
        low, high = ndtr(-locs / scales), ndtr((1.0 - locs) / scales)
        share = jax.random.uniform(of_positions, locs.shape)
        positions = jnp.clip(locs + scales * ndtri(low + share * (high - low)), 0.0, 1.0)
        is_number = slots[..., self._layout.numeric] == CONTINUOUS
        return jnp.concatenate([slots, jnp.where(is_number, positions, 0.0)], axis=-1)

    @property
    def _layout(self) -> _Layout:
        return _layout(self.code)

    def _statistics(self, rows: Array) -> Array:
        """Returns what a row contributes: slots one-hot, positions and their squares."""
        slots, positions = jnp.split(rows, [len(self.code.parts)], axis=-1)
        one_hot = (slots[..., self._layout.owner] == self._layout.number).astype(rows.dtype)
        return jnp.concatenate([one_hot, positions, positions**2], axis=-1)

    def _parameters(self) -> Array:
        """Returns the natural parameters of the components, one row each."""
        mass = ndtr((1.0 - self.locs) / self.scales) - ndtr(-self.locs / self.scales)
        precisions = self.scales**-2
        constants = -0.5 * self.locs**2 * precisions - jnp.log(self.scales * mass * _ROOT_TWO_PI)
        # What log N(p; loc, scale) has besides p goes to the slot that says that there is a p.
        log_slots = self._log_slots().at[:, self._layout.numeric, CONTINUOUS].add(constants)
        flat = log_slots[:, self._layout.owner, self._layout.number]
        return jnp.concatenate([flat, self.locs * precisions, -0.5 * precisions], axis=-1)

    def _log_slots(self) -> Array:
        """Returns float[K, columns, slots]: log probabilities, the shorter columns padded."""
        layout = self._layout
        padded = jnp.full((self.levels.shape[0], *layout.shape), _LOG_ZERO)
        padded = padded.at[:, layout.owner, layout.number].set(self.levels)
        return jax.nn.log_softmax(padded)


_MIN_SCALE = 0.02  # of the public range: it bounds densities, and with them gradients


def twin_program(code: RowCode, *, num_components: int = 16) -> Callable[..., None]:
    """Returns an ordinary NumPyro program for the rows of a table.

    A row comes from one of ``num_components`` components, within which columns are independent.
    Which one is summed out, so that there is no latent per row. The program is called with the
    coded ``rows``, or None to draw them, and ``num_records``: how many rows the whole table has
    (by default as many as ``rows``), or how many to draw.

    Its latents are ``weights`` and ``levels``, logits under normal priors, and, with numeric
    columns, ``locs`` and ``spreads``, which place their values in the public range. The components
    have no order, so a guide must not begin with all of them alike: see ``twin_guide``.

    Args:
      code: how rows are coded.
      num_components: more of them tell better how columns depend on each other, and cost more
        noise.

    Example:
      >>> import jax
      >>> from tacit.data import CategoricalColumn, Schema, Target
      >>> code = RowCode(
      ...     schema=Schema(
      ...         columns=(CategoricalColumn(name="sex", categories=("Female", "Male")),),
      ...         target=Target(name="ill", classes=("no", "yes")),
      ...     )
      ... )
      >>> program = twin_program(code, num_components=2)
      >>> predictive = numpyro.infer.Predictive(program, num_samples=1)
      >>> predictive(jax.random.key(0), num_records=3)["rows"].shape
      (1, 3, 2)
    """
    _check.positive_integer(num_components=num_components)
    num_slots, num_numeric = sum(code.num_slots), len(code.numeric)

    def program(rows: Array | None = None, num_records: int | None = None) -> None:
        size = num_records if rows is None else rows.shape[0]
        weights = numpyro.sample("weights", dist.Normal().expand([num_components]).to_event(1))
        levels = numpyro.sample(
            "levels", dist.Normal(0.0, 2.0).expand([num_components, num_slots]).to_event(2)
        )
        locs = spreads = jnp.zeros((num_components, 0))
        if num_numeric:
            shape = [num_components, num_numeric]
            locs = numpyro.sample("locs", dist.Uniform().expand(shape).to_event(2))
            spreads = numpyro.sample("spreads", dist.LogNormal(-2.0, 1.0).expand(shape).to_event(2))
        mixture = RowMixture(code, weights, levels, locs, _MIN_SCALE + spreads)
        with numpyro.plate("records", num_records or size, subsample_size=size):
            numpyro.sample("rows", mixture, obs=rows)

    return program


def twin_guide(program: Callable[..., None]) -> AutoNormal:
    """Returns a mean-field guide that begins at a draw of the prior, so that components differ.

    The beginning depends on a key and on no record.
    """
    return AutoNormal(program, init_loc_fn=init_to_sample, init_scale=0.1)
