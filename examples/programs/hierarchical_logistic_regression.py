"""Hierarchical logistic regression: the program of d3p's section 3.3.

The guide leaves the weights of groups out: NumPyro, and tacit, draw them from their prior given M.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro.distributions import Bernoulli, Normal
from numpyro.infer import Predictive, Trace_ELBO
from sklearn.metrics import roc_auc_score

from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array, Key, Params

__all__ = ["Groups", "auc", "guide", "model", "people", "run"]


class Groups(NamedTuple):
    """Records in groups, and what is publicly known of each group."""

    xs: NDArray[np.float32]
    ys: NDArray[np.int32]
    ls: NDArray[np.int32]
    gs: NDArray[np.float32]


def model(xs: Array, ys: Array | None, ls: Array, gs: Array, N: int) -> None:  # noqa: N803
    """Draws labels with weights for each group; M turns what is known of a group into weights."""
    batch_size, num_features = xs.shape
    num_groups, num_known = gs.shape
    m = numpyro.sample("M", Normal(0.0, 4.0), sample_shape=(num_features, num_known))
    with numpyro.plate("group", num_groups, num_groups):
        ws = numpyro.sample("ws", Normal(gs @ m.T, 1.0).to_event(1))
    with numpyro.plate("batch", N, batch_size):
        thetas = jax.nn.sigmoid(jnp.einsum("nd,nd->n", xs, ws[ls]))
        numpyro.sample("ys", Bernoulli(thetas), obs=ys)


def guide(xs: Array, ys: Array | None, ls: Array, gs: Array, N: int) -> None:  # noqa: N803
    """Independent normals for M; nothing for the weights of groups."""
    shape = (xs.shape[1], gs.shape[1])
    loc = numpyro.param("M_loc", jnp.zeros(shape))
    scale = jnp.exp(numpyro.param("M_scale_log", jnp.zeros(shape)))
    numpyro.sample("M", Normal(loc, scale))


def people(num_records: int, seed: int = 0) -> tuple[Groups, Groups]:
    """Returns simulated training and test records: 5 features, 3 groups, 3 numbers for each."""
    rng = np.random.default_rng(seed)
    gs, m = rng.normal(size=(3, 3)), rng.normal(size=(5, 3))
    ws = gs @ m.T + rng.normal(size=(3, 5))

    def draw() -> Groups:
        xs, ls = rng.normal(size=(num_records, 5)), rng.integers(3, size=num_records)
        ys = rng.random(num_records) < 1 / (1 + np.exp(-np.sum(xs * ws[ls], axis=1)))
        return Groups(
            xs.astype(np.float32), ys.astype(np.int32), ls.astype(np.int32), gs.astype(np.float32)
        )

    return draw(), draw()


def auc(key: Key, params: Params, test: Groups, *, num_draws: int = 500) -> float:
    """Returns the area under the ROC curve of the mean prediction over posterior draws."""
    predictive = Predictive(
        model, guide=guide, params=params, num_samples=num_draws, return_sites=["ws"]
    )
    ws = predictive(key, test.xs, None, test.ls, test.gs, len(test.xs))["ws"]
    logits = jnp.einsum("nd,snd->sn", test.xs, ws[:, test.ls])
    return float(roc_auc_score(test.ys, jax.nn.sigmoid(logits).mean(axis=0)))


def run(
    num_steps: int = 10_000,
    num_records: int = 500,
    epsilon: float = 4.0,
    seed: int | None = None,
) -> Outcome:
    """Fits M to simulated records in three groups."""
    train, test = people(num_records)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        epsilon=epsilon,
        delta=1 / num_records,
        clip_norm=1.0,
        batch_size=num_records / 10,
        public=("gs",),
        seed=seed,
    )
    key, prediction_key = jax.random.split(jax.random.key(seed or 0))
    result = svi.run(key, num_steps, *train, num_records, progress_bar=False)
    return Outcome({"AUC": auc(prediction_key, result.params, test)}, svi.statement(result.state))


if __name__ == "__main__":
    main(run)
