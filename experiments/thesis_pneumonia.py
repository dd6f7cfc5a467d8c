"""The thesis' tables 5.2, 5.4 and 5.6 (Ghitu): PneumoniaMNIST, robust at radius 0.01.

What differs is what differs for MNIST, and the network: all rows have one of about 6000 weights on
averages of 2 x 2 pixels. The thesis' CNN has 494 000: noise on so many numbers is larger than what
5232 records can say, and chains and certificates of it take longer here than a cell may. Without
privacy all records are seen, in two phases of which the second is kept. The burn-in of private
chains is that of ``robust_pneumonia``, which was chosen on shirts, with probabilities divided by
the classes' public shares as there; the moves after it follow from the energies that
``thesis_chains`` tells of, and had no rival.
"""

from experiments.cells import Experiment, Settings, main
from experiments.thesis_fitting import num_releases
from experiments.thesis_mnist import QUICK, measure

__all__ = ["EXPERIMENT", "private_cell"]

_NUM_RECORDS = 5232


def cell(row: str, adversary: str = "none") -> Settings:
    """Returns the settings of a chain that is not private."""
    phase = {
        "temperature": 1.0,
        "radius": 0.01,
        "num_leapfrog": 10,
        "num_proposals": 20,
    }
    phases = [phase | {"path_length": length} for length in (0.04, 0.02)]
    return _common("pneumonia", row, adversary) | {
        "network": "pooled 196-32-2",
        "phases": phases,
        "num_releases": num_releases(phases),
    }


def private_cell(data: str, row: str) -> Settings:
    """Returns the settings of a private chain."""
    burn_in = {
        "radius": 0.01,
        "batch_size": _NUM_RECORDS,
        "num_steps": 200,
        "clip_norm": 5.0,
        "learning_rate": 0.1,
        "epsilon": 4.0,
    }
    around = {
        "temperature": 1.0,
        "radius": 0.01,
        "batch_size": _NUM_RECORDS,
        "num_proposals": 20,
        "num_leapfrog": 3,
        "path_length": 7e-4,
        "clip_norm": 5.0,
        "ratio_clip_norm": 0.5,
        "ratio_noise": 3.0,
        "epsilon": 8.0,
    }
    phases = [burn_in, around]
    adversary = "intervals" if row.startswith("IBP") else "none"
    return _common(data, row, adversary) | {
        "network": "pooled 196-32-2",
        "epsilon": 8.0,
        "delta": 1e-5,
        "phases": phases,
        "num_releases": num_releases(phases),
    }


def _common(data: str, row: str, adversary: str) -> Settings:
    return {
        "row": row,
        "data": data,
        "foreign": "fashion_mnist",
        "num_records": _NUM_RECORDS,
        "balance": "shares",
        "first_layer": 0.3,
        "prior_std": 1.0,
        "adversary": adversary,
        "attack_steps": 4,
        "clean_weight": 0.5,
        "test_radius": 0.01,
    }


_SGD = _common("pneumonia", "SGD", "none") | {
    "network": "pooled 196-32-2",
    "batch_size": 128,
    "num_steps": 1000,
    "learning_rate": 0.02,
}

EXPERIMENT = Experiment(
    name="thesis_pneumonia",
    cells=(
        private_cell("pneumonia", "DP-HMC"),
        private_cell("pneumonia", "IBP-DP-HMC"),
        _SGD,
        cell("HMC"),
        cell("IBP-HMC", "intervals"),
        cell("FGSM-HMC", "FGSM"),
        cell("PGD-HMC", "PGD"),
    ),
    num_seeds=5,
    measure=measure,
    quick=QUICK
    | {
        "data": "threes_and_eights",
        "num_records": 200,
        "network": "pooled 196-32-2",
        "test_radius": 0.01,
    },
)

if __name__ == "__main__":
    main(EXPERIMENT)
