"""An image set with a certified posterior: digits that nobody can change into others by a little.

The story: an office reads handwritten digits that people filled into forms. It wants to publish the
reader; nothing about any one form may be learnt from it, and a slight smudge, or somebody's clever
one, must not turn a 1 into a 7. The images are scikit-learn's digits, 8 by 8 pixels. Run it with

    python -m examples.tutorials.images
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import tacit
from tacit.certify.predictive import certified_curve
from tacit.metrics import accuracy
from tacit.models import MLP, Categorical, GaussianPrior
from tacit.robust import Linf
from tacit.typing import Scalar

__all__ = ["run"]

RADII = (0.0, 0.02, 0.05, 0.1)


def run(
    directory: Path, *, num_steps: int = 300, num_test: int = 200, seed: int | None = None
) -> dict[str, float]:
    """Fits a robust network privately, certifies it, saves it, and loads it again."""
    # 1. Records: pixels are from 0 to 16, as everybody knows, so the scale costs nothing.
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = images[order] / 16.0, labels[order]
    private = tacit.as_records(x[:1400], y[:1400])
    public = tacit.as_records(x[1400:][:num_test], y[1400:][:num_test])

    # 2. A Bayesian network, and how far an image may be changed: every pixel by a twentieth.
    network = MLP(num_inputs=64, hidden=(64,), num_outputs=10)
    model = tacit.bayesian(
        network, prior=GaussianPrior(std=0.5), likelihood=Categorical(num_classes=10)
    )
    ball = Linf(radius=0.05, low=0.0, high=1.0)

    # 3. Robust training is another model, so that every method can do it, at the same price. The
    #    ball grows over the first half of the steps.
    ramp = tacit.inference.Ramp(first=0.0, last=0.05, stop=max(1, num_steps // 2))

    def robust(model: tacit.Model, step: Scalar) -> tacit.Model:
        return tacit.certified(model, network, ball.at(ramp(step)), weight=0.5)

    # 4. The plan, and the noise that the budget asks for. So few records need a large epsilon.
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=1400, batch_size=280),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    langevin = tacit.SGLD.fixed_noise(release=release, step_size=2.0 / 1400)
    plan = tacit.Plan(
        method=tacit.inference.Scheduled(base=langevin, transform=robust),
        num_steps=num_steps,
        burn_in=3 * num_steps // 4,
        thinning=max(1, num_steps // 40),
    )
    budget = tacit.Budget(epsilon=8.0, delta=1e-4)
    fit = tacit.fit(tacit.calibrate(plan, budget), model, private, budget=budget, seed=seed)
    print(fit.statement)

    # 5. What it is worth on images that are public.
    predicted = tacit.predict(fit.posterior, public.x)
    found = {"accuracy": accuracy(predicted.probabilities, public.y)}
    print(f"accuracy {found['accuracy']:.3f}")

    # 6. The certificate: of the posterior predictive, over all its draws, for every attack.
    for certificate in certified_curve(fit.posterior, public.x, public.y, ball, RADII):
        found[f"certified at {certificate.radius:g}"] = certificate.certified_accuracy.estimate
        print(certificate)

    # 7. Publish the folder; whoever receives it predicts and certifies without any record.
    fit.posterior.save(directory)
    fit.statement.save(directory)
    received = tacit.load_posterior(directory)
    again = tacit.predict(received, public.x)
    found["accuracy of who received it"] = accuracy(again.probabilities, public.y)
    return found


def main() -> None:
    """Runs the tutorial from the command line."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--steps", type=int, default=300, help="how many")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), num_steps=arguments.steps)


if __name__ == "__main__":
    main()
