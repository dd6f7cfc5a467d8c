"""Makes report.png: the report of a private fit on census records, seen by a browser.

python docs/pictures/report.py run/      # the run's directory, with report.html
python docs/pictures/report.py --picture # and docs/pictures/report.png; wants chromium
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from examples.census import BUDGET, census, engine, network

import tacit
from tacit.certify.predictive import certified_curve
from tacit.data import load_adult
from tacit.metrics import accuracy, auroc, bootstrap, ece, nll, reliability
from tacit.metrics.confidence import calibration_interval, wilson_interval
from tacit.metrics.selection import risk_coverage
from tacit.report.html import write_report
from tacit.robust import Linf


def make_run(directory: Path, *, num_steps: int = 400) -> None:
    """Fits, evaluates, certifies, and writes the documents of a run."""
    train, test = census()
    method = tacit.SGLD.fixed_noise(release=engine(len(train.y)), step_size=6 / len(train.y))
    plan = tacit.Plan(
        method=method, num_steps=num_steps, burn_in=num_steps // 2, thinning=num_steps // 40
    )
    progress: list[dict[str, Any]] = []
    fit = tacit.fit(
        tacit.calibrate(plan, BUDGET),
        network(),
        train,
        budget=BUDGET,
        progress=lambda **news: progress.append({k: news[k] for k in ("step", "epsilon")}),
    )
    fit.posterior.save(directory)
    fit.statement.save(directory)
    _write(directory / "progress.json", progress)
    _write(directory / "evaluation.json", evaluate(fit.posterior, test))
    _write(directory / "certificate.json", certify(fit.posterior, test))


def evaluate(posterior: tacit.Posterior, test: tacit.Record) -> dict[str, Any]:
    """Returns what evaluation.json holds."""
    predictions = tacit.predict(posterior, test.x, batch_size=4096)
    probabilities, labels = np.asarray(predictions.probabilities), np.asarray(test.y)
    table = reliability(probabilities, labels)
    low, high = wilson_interval(
        np.nan_to_num(np.round(table.counts * table.accuracy)), table.counts
    )
    wrong = probabilities.argmax(-1) != labels
    curve = risk_coverage(np.asarray(predictions.total_entropy), wrong)
    shown = np.linspace(0.05, 1, 40)
    return {
        "kind": "classification",
        "data": {"name": "UCI Adult, official test part", "num_records": len(labels)}
        | {"public": True, "statement": None},
        "metrics": _metrics(probabilities, labels)
        | {
            "nll": _interval(bootstrap(nll, probabilities, labels, seed=0, num_resamples=50)),
            "auroc": _interval(bootstrap(auroc, probabilities, labels, seed=0, num_resamples=20)),
        },
        "reliability": [
            {"confidence": c, "accuracy": a, "low": lo, "high": hi, "count": n}
            for c, a, lo, hi, n in zip(
                *(x.tolist() for x in (table.confidence, table.accuracy, low, high, table.counts)),
                strict=True,
            )
            if n
        ],
        "uncertainty": {
            kind: dict(zip(("counts", "edges"), (x.tolist() for x in _histogram(v)), strict=True))
            for kind, v in (
                ("aleatoric", predictions.aleatoric_entropy),
                ("epistemic", predictions.mutual_information),
            )
        },
        "selective": [
            {"coverage": float(c), "accuracy": 1 - float(np.interp(c, curve.coverage, curve.risk))}
            for c in shown
        ],
        "subgroups": list(_subgroups(probabilities, labels)),
    }


def certify(posterior: tacit.Posterior, test: tacit.Record) -> dict[str, Any]:
    """Returns what certificate.json holds."""
    x, y = test.x[:200], test.y[:200]
    radii = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)
    curve = certified_curve(posterior, x, y, Linf(radius=0.0), radii)
    return {
        "data": {"name": "UCI Adult, first records of the test part", "num_records": len(y)}
        | {"public": True, "statement": None},
        "norm": "l-infinity, inputs scaled to [-1, 1]",
        "method": "Linear bounds (CROWN) of the posterior predictive.",
        "points": [
            {
                "radius": found.radius,
                "accuracy": found.accuracy.estimate,
                "certified": found.certified_accuracy.estimate,
                "low": found.certified_accuracy.low,
                "high": found.certified_accuracy.high,
            }
            for found in curve
        ],
    }


def _subgroups(probabilities: Any, labels: Any) -> Any:
    frame = load_adult()[1]
    for column in ("sex", "race"):
        for value in sorted(frame[column].unique()):
            rows = (frame[column] == value).to_numpy()
            yield {
                "column": column,
                "value": value,
                "num_records": int(rows.sum()),
                "metrics": _metrics(probabilities[rows], labels[rows]),
            }


def _metrics(probabilities: Any, labels: Any) -> dict[str, Any]:
    return {
        "accuracy": _interval(
            bootstrap(accuracy, probabilities, labels, seed=0, num_resamples=100)
        ),
        "ece": _interval(
            calibration_interval(ece, probabilities, labels, seed=0, num_resamples=100)
        ),
    }


def _interval(found: Any) -> dict[str, float]:
    return {"value": found.estimate, "low": found.low, "high": found.high}


def _histogram(values: Any) -> Any:
    values = np.asarray(values)
    return np.histogram(values, bins=24, range=(0.0, float(values.max())))


def _write(file: Path, document: Any) -> None:
    file.write_text(json.dumps(document) + "\n", encoding="utf-8")


def screenshot(page: Path, picture: Path) -> None:
    """Takes a picture of the top of a page, as wide as a desktop."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not installed")
    subprocess.run(
        [
            *(chromium, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"),
            *("--window-size=1180,1735", f"--screenshot={picture}", page.resolve().as_uri()),
        ],
        check=True,
        capture_output=True,
    )


def main() -> None:
    """Makes the run and the page, and the picture where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--picture", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary) / "census income"
        make_run(directory)
        page = write_report(directory)
        if options.picture:
            screenshot(page, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
