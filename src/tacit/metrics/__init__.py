"""Metrics: arrays in, numbers out.

All of them are post-processing and cost no privacy on public or separately consented records;
on private records a metric is a release and must be charged.
"""

from tacit.metrics.calibration import ece, interval_coverage, quantile_interval, reliability
from tacit.metrics.chains import diagnose
from tacit.metrics.confidence import bootstrap
from tacit.metrics.scores import accuracy, auroc, brier, gaussian_nll, nll, rmse
from tacit.metrics.selection import ood_auroc
from tacit.metrics.uncertainty import classification_uncertainty, regression_uncertainty

__all__ = [
    "accuracy",
    "auroc",
    "bootstrap",
    "brier",
    "classification_uncertainty",
    "diagnose",
    "ece",
    "gaussian_nll",
    "interval_coverage",
    "nll",
    "ood_auroc",
    "quantile_interval",
    "regression_uncertainty",
    "reliability",
    "rmse",
]
