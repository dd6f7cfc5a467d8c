"""Zhang et al.'s tables 1, 2 and 4: accuracy, seconds and calibration by the paper's protocol."""

from collections.abc import Sequence

from experiments import zhang_tables
from experiments.cells import Row, read_rows
from experiments.markdown import at, progress, summary, table
from experiments.pages.zhang_figures import FIGURES

__all__ = ["accuracy", "calibration"]

_NETWORKS = {"mlp": "MLP", "cnn": "CNN"}
_ACCURACY = {  # table 1: with privacy, without
    ("mlp", "SGLD", "gaussian"): ("0.90", "0.95"),
    ("mlp", "SGLD", "laplace"): ("0.89", "0.90"),
    ("mlp", "BBP", "gaussian"): ("0.80", "0.97"),
    ("mlp", "BBP", "laplace"): ("0.81", "0.98"),
    ("mlp", "MC dropout", "gaussian"): ("0.78", "0.98"),
    ("mlp", "SGD", "none"): ("0.77", "0.97"),
    ("cnn", "SGLD", "gaussian"): ("0.95", "0.96"),
    ("cnn", "SGLD", "laplace"): ("0.89", "0.89"),
    ("cnn", "MC dropout", "gaussian"): ("0.77", "0.97"),
    ("cnn", "SGD", "none"): ("0.95", "0.99"),
}
_SECONDS = {"SGLD": "10", "BBP": "480", "MC dropout": "9", "SGD": "10"}  # table 1, on a GPU
_CALIBRATION = {  # tables 2 and 4: ECE and MCE with privacy, ECE and MCE without
    ("mlp", "BBP", "gaussian"): ("0.204", "0.641", "0.024", "0.052"),
    ("mlp", "BBP", "none"): ("0.167", "0.141", "0.166", "0.166"),
    ("mlp", "SGLD", "gaussian"): ("0.007", "0.175", "0.035", "0.175"),
    ("mlp", "SGLD", "none"): ("0.126", "0.465", "0.008", "0.289"),
    ("mlp", "MC dropout", "gaussian"): ("0.008", "0.080", "0.030", "0.041"),
    ("mlp", "MC dropout", "none"): ("0.078", "0.225", "0.002", "0.725"),
    ("mlp", "SGD", "gaussian"): ("0.013", "0.089", "0.016", "0.139"),
    ("mlp", "SGD", "none"): ("0.106", "0.625", "0.005", "0.299"),
    ("cnn", "SGLD", "gaussian"): ("0.003", "0.775", "0.001", "0.011"),
    ("cnn", "SGLD", "none"): ("0.043", "0.371", "0.006", "0.219"),
    ("cnn", "MC dropout", "gaussian"): ("0.001", "0.275", "0.030", "0.325"),
    ("cnn", "MC dropout", "none"): ("0.033", "0.230", "0.003", "0.225"),
    ("cnn", "SGD", "gaussian"): ("0.005", "0.391", "0.002", "0.059"),
    ("cnn", "SGD", "none"): ("0.037", "0.365", "0.014", "0.325"),
}


def accuracy() -> str:
    """Returns the part on table 1."""
    experiment = zhang_tables.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for key in _all_cells():
        private, plain = (_cell(rows, key, is_private=is_private) for is_private in (True, False))
        steps = zhang_tables.cell(*key, is_private=True)["num_steps"]
        there = _ACCURACY.get(key, ("", ""))
        lines.append(
            [
                *_names(key),
                f"{steps * 256 / 60_000:.0f}",
                summary(experiment, private, "accuracy", digits=4),
                there[0],
                summary(experiment, plain, "accuracy", digits=4),
                there[1],
                summary(experiment, private, "seconds per epoch", digits=0),
                _SECONDS[key[1]] if key in _ACCURACY else "",
            ]
        )
    header = ["network", "method", "prior", "epochs", "DP accuracy", "there", "accuracy without DP"]
    header += ["there", "seconds per epoch with DP", "there, GPU"]
    return f"""### Accuracy by the paper's protocol (table 1)

Batches of 256, clip norm 1.5, learning rate 0.3, pixels as they are; epsilon 0.89 at delta 1e-5
wherever there is DP. Theirs always run 15 epochs.
{progress(experiment, rows)}

{table(header, lines)}

Seconds include compiling and are those of one shared core. The paper's DP-SGD on the MLP (0.77)
and its DP-BBP and DP-MC-dropout were run with other learning rates, among them 2e-4 for dropout;
here one rate serves all. Its DP-BBP takes 48 times as long as its DP-SGLD, because it forms the
gradient of every record; here no gradient of a record is formed.{_slowdown(rows)}"""


def _slowdown(rows: Sequence[Row]) -> str:
    keys = (("mlp", "BBP", "gaussian"), ("mlp", "SGLD", "gaussian"))
    slow, fast = (_cell(rows, key, is_private=True) for key in keys)
    if not slow or not fast:
        return ""
    ratio = slow[0]["scores"]["seconds per epoch"] / fast[0]["scores"]["seconds per epoch"]
    return f" DP-BBP takes {ratio:.1f} times as long as DP-SGLD."


def calibration() -> str:
    """Returns the part on tables 2 and 4."""
    experiment = zhang_tables.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for key, there in _CALIBRATION.items():
        line = _names(key)
        for is_private in (True, False):
            found = _cell(rows, key, is_private=is_private)
            shown = [
                summary(experiment, found, score, digits=3)
                for score in ("ECE", "MCE", "ECE of Zhang", "MCE of Zhang")
            ]
            printed = there[:2] if is_private else there[2:]
            line += [
                f"{shown[0]} / {shown[1]}",
                f"{shown[2]} / {shown[3]}",
                " / ".join(printed),
            ]
        lines.append(line)
    header = ["network", "method", "prior", "DP: ECE / MCE", "by their definition", "there"]
    header += ["without DP: ECE / MCE", "by their definition", "there"]
    return f"""### Calibration (tables 2 and 4)

From the same runs. Our ECE has 15 bins and takes each bin's mean confidence; what the paper's
numbers are is the distance of accuracy and mean confidence over all images (one bin), and the
largest distance from the middle of a bin. The second is large for any bin with few images.

{table(header, lines)}

{FIGURES[1].markdown}"""


def _cell(rows: Sequence[Row], key: tuple[str, str, str], *, is_private: bool) -> list[Row]:
    network, method, prior = key
    return at(rows, zhang_tables.cell(network, method, prior, is_private=is_private))


def _all_cells() -> list[tuple[str, str, str]]:
    keys = (
        (cell["network"], cell["method"], cell["prior"]) for cell in zhang_tables.EXPERIMENT.cells
    )
    return sorted(set(keys), key=lambda key: (key[0] != "mlp", key[1] != "SGLD", *key[1:]))


def _names(key: tuple[str, str, str]) -> list[str]:
    network, method, prior = key
    names = {"gaussian": "Gaussian", "laplace": "Laplace", "none": "none"}
    return [_NETWORKS[network], method, names[prior]]
