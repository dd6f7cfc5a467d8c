"""What the thesis (Ghitu) prints in its tables 5.1 to 5.6."""

import math

__all__ = ["ROWS", "printed"]

ROWS = ("SGD", "HMC", "FGSM-HMC", "PGD-HMC", "IBP-HMC", "DP-HMC", "IBP-DP-HMC")

# In percent; "OOD ECE" is left out, see the text of the page.
_PUBLISHED = {
    "thesis_mnist": {
        "accuracy": (98.03, 87.90, 86.85, 86.99, 89.47, 77.40, 87.12),
        "accuracy under FGSM": (15.67, 56.01, 78.26, 78.51, 83.70, 45.08, 84.13),
        "accuracy under PGD": (10.03, 51.86, 77.36, 77.75, 83.42, 42.11, 82.17),
        "certified accuracy": (0.0, 0.0, 0.0, 0.0, 68.68, 0.0, 57.47),
        "AUROC": (99.97, 98.72, 98.62, 98.64, 98.78, 96.86, 98.67),
        "ECE": (0.33, 17.75, 24.48, 24.12, 24.37, 12.57, 6.71),
        "OOD balanced accuracy": (54.89, 80.36, 77.38, 77.76, 73.69, 76.42, 72.07),
    },
    "thesis_pneumonia": {
        "accuracy": (87.02, 89.26, 83.49, 85.10, 85.74, 86.86, 83.81),
        "accuracy under FGSM": (74.84, 81.09, 77.56, 79.17, 82.21, 80.61, 80.45),
        "accuracy under PGD": (74.52, 80.77, 74.84, 75.48, 76.28, 80.29, 77.88),
        "certified accuracy": (80.13, 0.0, 0.0, 0.0, 78.04, 0.0, 73.88),
        "AUROC": (93.48, 95.85, 92.28, 92.51, 92.86, 92.27, 91.33),
        "ECE": (10.95, 4.93, 11.95, 12.09, 10.67, 7.53, 12.07),
        "OOD balanced accuracy": (35.71, 52.25, 48.82, 50.64, 46.32, 49.51, 53.83),
    },
}


def printed(name: str, row: str, score: str) -> float:
    """Returns what the thesis prints, as a share; NaN where it prints nothing."""
    there = _PUBLISHED[name].get(score)
    return math.nan if there is None else there[ROWS.index(row)] / 100
