"""DP-HMC: chains that start from a private fit, and a private Metropolis correction.

The correction is expensive: the noise of its ratio is a penalty that grows with the square of the
distance. So the model is small, and part of the budget goes into a start by Laplace, whose
coordinates make paths short and trajectories free.
"""

import numpy as np

import tacit
from examples.census import BUDGET, Scores, census, main, scores
from tacit.data import ADULT_SCHEMA
from tacit.data.made_up import made_up_features
from tacit.inference import WarmHMC, fit_hmc
from tacit.models import MLP, Bernoulli, GaussianPrior

__all__ = ["run"]

_FEATURES = (
    *("age@17", "age@20", "age@30", "education_num", "capital_gain@0"),
    *("marital_status=Married-civ-spouse", "sex=Male"),
)


def run(
    num_steps: int = 20, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Draws the weights of a logistic regression on seven features."""
    columns = np.array([ADULT_SCHEMA.feature_names.index(name) for name in _FEATURES])
    train, test = (part._replace(x=part.x[:, columns]) for part in census(num_records))
    model = tacit.bayesian(
        MLP(num_inputs=len(columns), hidden=(), num_outputs=1),
        prior=GaussianPrior(std=3.0),
        likelihood=Bernoulli(),
    )
    fit = fit_hmc(
        WarmHMC(num_records=len(train.y), num_proposals=num_steps, chunk_size=2048),
        model,
        train,
        inputs=made_up_features(ADULT_SCHEMA, num_rows=1000)[:, columns],
        budget=BUDGET,
        seed=seed,
    )
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
