"""Inference methods: the only layer that knows both privacy and models."""

from tacit.inference.chains import ProgressBar, load_checkpoint, save_checkpoint
from tacit.inference.clip_norm import data_free_clip_norm, private_clip_norm, synthetic_records
from tacit.inference.ensemble import Ensemble, assign_shards
from tacit.inference.fit import Fit, fit
from tacit.inference.guides import LowRank, MeanField
from tacit.inference.hmc import HMC
from tacit.inference.ivon import IVON
from tacit.inference.laplace import Laplace
from tacit.inference.phases import Phase, calibrate_phases, fit_phases, tempered
from tacit.inference.plan import Plan, calibrate, calibrate_steps
from tacit.inference.schedules import Ramp, Scheduled
from tacit.inference.sgd import SGD, SWAG, IterateAverage
from tacit.inference.sgld import SGHMC, SGLD
from tacit.inference.vi import VI
from tacit.inference.warm import WarmHMC, fit_hmc

__all__ = [
    "HMC",
    "IVON",
    "SGD",
    "SGHMC",
    "SGLD",
    "SWAG",
    "VI",
    "Ensemble",
    "Fit",
    "IterateAverage",
    "Laplace",
    "LowRank",
    "MeanField",
    "Phase",
    "Plan",
    "ProgressBar",
    "Ramp",
    "Scheduled",
    "WarmHMC",
    "assign_shards",
    "calibrate",
    "calibrate_phases",
    "calibrate_steps",
    "data_free_clip_norm",
    "fit",
    "fit_hmc",
    "fit_phases",
    "load_checkpoint",
    "private_clip_norm",
    "save_checkpoint",
    "synthetic_records",
    "tempered",
]
