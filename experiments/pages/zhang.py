"""Zhang et al.: private Bayesian networks on MNIST, tables 1, 2, 4 and 5."""

from collections.abc import Sequence

from experiments import choosing_zhang, zhang_family, zhang_headline, zhang_tables
from experiments.cells import Row, Settings, read_rows
from experiments.figures import Figure
from experiments.markdown import at, progress, summary, table
from experiments.pages import zhang_figures

__all__ = ["FIGURES", "section"]

FIGURES: Sequence[Figure] = zhang_figures.FIGURES

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


def section() -> str:
    """Returns the section."""
    return "\n\n".join(
        [_headline(), _choices(), _accuracy(), _calibration(), _family(), _posteriors(), _table_5()]
    )


def _headline() -> str:
    experiment = zhang_headline.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for settings in experiment.cells:
        found = at(rows, settings)
        is_relu = settings["activation"] == "relu"
        scores = ("accuracy", "ECE", "NLL", "accuracy, last iterate", "ECE, last iterate")
        lines.append(
            [
                f"{_NETWORKS[settings['network']]}, {settings['activation']}",
                found[0]["epsilon"] if found else "",
                *(summary(experiment, found, score, digits=4) for score in scores),
                _ACCURACY[settings["network"], "SGLD", "gaussian"][0] if is_relu else "",
            ]
        )
    header = ["network", "epsilon", "accuracy", "ECE", "NLL"]
    header += ["accuracy of the last iterate", "its ECE", "accuracy there"]
    return f"""### The same networks, with settings of our own

DP-SGLD with the Gaussian prior on MNIST's test images, mean ± standard deviation over runs; delta
is 1e-5. The posterior is the iterates of the last part of the run; beside it stands the last
iterate alone, to show what the average over the posterior adds.
{progress(experiment, rows)}

{table(header, lines)}

Epsilon is a bound by privacy-loss distributions of what was executed, with Poisson batches. Zhang
et al. state 0.861 for theirs, by a central limit theorem that is no bound; 0.89 is what the same
noise costs. Different are batch size, clip, learning rate and number of steps, and that each image
loses its own mean and spread, which uses no other record. Clip, rate and momentum were chosen on
Fashion-MNIST; batch size and number of steps by what one core can do in minutes.

{FIGURES[3].markdown}"""


def _choices() -> str:
    experiment = choosing_zhang.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for settings in experiment.cells:
        found = at(rows, settings)
        lines.append(
            [
                f"{_NETWORKS[settings['network']]}, {settings['activation']}",
                *(f"{settings[name]:g}" for name in choosing_zhang.VARIED),
                *(summary(experiment, found, score, digits=4) for score in ("accuracy", "ECE")),
                "chosen" if _is_chosen(settings) else "",
            ]
        )
    varied = [name.replace("_", " ") for name in choosing_zhang.VARIED]
    return f"""The candidates, on Fashion-MNIST; {choosing_zhang.RULE}.
{progress(experiment, rows)}

{table(["network", *varied, "accuracy", "ECE", ""], lines)}

{_clips(rows)}"""


def _clips(rows: Sequence[Row]) -> str:
    """Says what the clip did to calibration, with the numbers of the table above."""
    found = sorted(at(rows, {"network": "mlp"}), key=lambda row: row["settings"]["clip_norm"])
    if len(found) < 2:
        return ""
    low, high = (
        f"{row['scores']['ECE']:.3f} at clip norm {row['settings']['clip_norm']:g}"
        for row in (found[0], found[-1])
    )
    return f"""The MLP's ECE is {low} and {high}; the rates differ too. A likely
reason: a clip far below most gradients gives every record nearly the same say, however small its
loss, and confidence is pushed on where the likelihood would leave it."""


def _is_chosen(settings: Settings) -> bool:
    return any(settings | {"data": "mnist"} == cell for cell in zhang_headline.EXPERIMENT.cells)


def _cell(rows: Sequence[Row], key: tuple[str, str, str], *, is_private: bool) -> list[Row]:
    network, method, prior = key
    return at(rows, zhang_tables.cell(network, method, prior, is_private=is_private))


def _all_cells() -> list[tuple[str, str, str]]:
    keys = (
        (cell["network"], cell["method"], cell["prior"]) for cell in zhang_tables.EXPERIMENT.cells
    )
    return sorted(set(keys), key=lambda key: (key[0] != "mlp", key[1] != "SGLD", *key[1:]))


def _accuracy() -> str:
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


def _names(key: tuple[str, str, str]) -> list[str]:
    network, method, prior = key
    names = {"gaussian": "Gaussian", "laplace": "Laplace", "none": "none"}
    return [_NETWORKS[network], method, names[prior]]


def _calibration() -> str:
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


def _family() -> str:
    experiment = zhang_family.EXPERIMENT
    return f"""### DP-SGLD inside the DP-SGD family (figures 1 and 2)

Theorem 1 is checked by a test, step by step: with the same keys DP-SGLD and the DP-SGD that it
equals make the same releases and iterates. So to be inside the family is no advantage by
itself: a DP-SGLD is a DP-SGD whose noise was not chosen but follows from batch size, learning rate
and clip. A network of 784-100-10 on pixels, one run each, judged by the last iterate.
{progress(experiment, read_rows(experiment.name))}

{FIGURES[0].markdown}

{_opposites()}"""


def _opposites() -> str:
    rows = read_rows(zhang_family.EXPERIMENT.name)
    lines = []
    for name in ("batch_size", "learning_rate"):
        pairs = zip(*(zhang_family.swept(method, name) for method in ("SGD", "SGLD")), strict=True)
        for pair in pairs:
            line = [f"{name.replace('_', ' ')} {pair[0][name]:g}"]
            for settings in pair:
                found = at(rows, settings)
                line += [
                    found[0]["epsilon"].split()[0] if found else "not run",
                    f"{found[0]['scores']['accuracy']:.4f}" if found else "not run",
                ]
            lines.append(line)
    header = ["", "DP-SGD: epsilon", "accuracy", "DP-SGLD: epsilon", "accuracy"]
    return f"""{table(header, lines)}

At a given noise multiplier a larger batch costs DP-SGD more; for DP-SGLD the multiplier grows with
the batch, and it costs less. The learning rate does not enter the cost of DP-SGD; that of DP-SGLD
grows with it."""


def _posteriors() -> str:
    return f"""### Posteriors of single digits (figures 5, 6 and 7)

What the draws of each posterior say of two test images, from the runs of table 1 with the Gaussian
prior. The paper does not tell which images it shows; these are the second and the nineteenth.

{FIGURES[2].markdown}"""


def _table_5() -> str:
    lines = [
        ["variational inference", "no", "yes", "yes"],
        ["sampling approach", "yes", "no", "no"],
        ["optimises a KL divergence", "no", "yes", "no"],
        ["general network structure", "yes", "**yes** (no there)", "yes"],
        ["general optimisers", "**momentum, SGHMC** (n/a there)", "yes", "yes"],
        ["general weight prior", "yes", "yes", "no"],
        ["memory", "high: one copy a state", "low: two copies", "low: one copy"],
        ["computation", "low", "**low** (high there): see the seconds above", "low"],
        ["analytic posterior", "no", "yes", "no"],
    ]
    return f"""### Algorithmic comparison (table 5)

The paper's table, with what differs here in bold.

{table(["", "DP-SGLD", "DP-BBP", "DP-MC-dropout"], lines)}"""
