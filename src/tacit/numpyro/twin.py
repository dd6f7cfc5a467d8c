"""A twin of a table: a NumPyro program over all its columns, of every type."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_sample

from tacit import _check
from tacit.numpyro.row_mixture import RowMixture
from tacit.numpyro.rows import RowCode
from tacit.typing import Array

__all__ = ["twin_guide", "twin_program"]

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
      >>> from tacit.data import Categorical, Schema, Target
      >>> code = RowCode(
      ...     schema=Schema(
      ...         columns=(Categorical(name="sex", categories=("Female", "Male")),),
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
