"""Which private chains to run on MNIST: candidates, tried on Fashion-MNIST.

A chain whose last phase accepts less than a fifth of its proposals does not count: it would be a
point with a name. Of the others the most accurate wins; where the model is trained with
intervals, the one with the largest sum of accuracy and certified accuracy. Steps, clips and
temperatures of these candidates come from shorter trials, on the same stand-in. Chains with a
burn-in were tried when the best robust one without had been run on MNIST, once: accuracy 0.718,
0.494 certified, and one proposal of 20 accepted.
"""

from experiments.cells import Experiment, Measured, Row, Settings, main
from experiments.scoring import class_scores, predictions
from experiments.thesis_chains import CANDIDATES, private_cell
from experiments.thesis_fitting import ball, run_chain
from experiments.thesis_inputs import inputs_of
from experiments.thesis_mnist import QUICK
from experiments.thesis_scores import NUM_EXAMINED, acceptance_series, chain_scores
from tacit.certify import certify_predictive

__all__ = ["EXPERIMENT", "merit"]


def measure(settings: Settings, seed: int) -> Measured:
    """Runs the chain, and scores what the choice is made by."""
    train, test, _ = inputs_of(settings)
    fits = run_chain(settings, train, seed)
    posterior = fits[-1].posterior
    scores = class_scores(predictions(posterior, test.x), test) | chain_scores(fits)
    if settings["adversary"] == "intervals":
        certificate = certify_predictive(
            posterior,
            test.x[:NUM_EXAMINED],
            test.y[:NUM_EXAMINED],
            ball(settings["test_radius"]),
            num_draws=10,
        )
        scores["certified accuracy"] = certificate.certified_accuracy.estimate
    return Measured(scores, fits[-1].statement, acceptance_series(fits))


def merit(row: Row) -> float:
    """Returns what the candidates are compared by."""
    scores = row["scores"]
    if scores["acceptance"] < 0.2:
        return 0.0
    return float(scores["accuracy"] + scores.get("certified accuracy", 0.0))


EXPERIMENT = Experiment(
    name="choosing_thesis",
    cells=tuple(private_cell("fashion_mnist", chain) for group in CANDIDATES for chain in group),
    num_seeds=1,
    measure=measure,
    quick=QUICK,
)

if __name__ == "__main__":
    main(EXPERIMENT)
