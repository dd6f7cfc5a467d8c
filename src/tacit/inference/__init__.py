"""Inference methods: the only layer that knows both privacy and models."""

from tacit.inference.chains import Checkpoint, ProgressBar, load_checkpoint, save_checkpoint
from tacit.inference.clip_norm import (
    data_free_clip_norm,
    private_clip_norm,
    synthetic_records,
)
from tacit.inference.ensemble import Ensemble, assign_shards, shard_records, shard_size
from tacit.inference.fit import Fit, fit
from tacit.inference.guides import LowRank, MeanField
from tacit.inference.hmc import HMC
from tacit.inference.method import Kernel, Method, Objective, declare, table_methods
from tacit.inference.plan import Plan, calibrate, calibrate_batch_size, calibrate_steps
from tacit.inference.schedules import (
    Constant,
    Cosine,
    Cyclical,
    Exponential,
    Polynomial,
    Ramp,
    Scheduled,
)
from tacit.inference.sgd import SGD, SWAG, IterateAverage
from tacit.inference.sgld import SGHMC, SGLD
from tacit.inference.vi import IVON, VI, RecordDraws, SharedDraws

__all__ = [
    "HMC",
    "IVON",
    "SGD",
    "SGHMC",
    "SGLD",
    "SWAG",
    "VI",
    "Checkpoint",
    "Constant",
    "Cosine",
    "Cyclical",
    "Ensemble",
    "Exponential",
    "Fit",
    "IterateAverage",
    "Kernel",
    "LowRank",
    "MeanField",
    "Method",
    "Objective",
    "Plan",
    "Polynomial",
    "ProgressBar",
    "Ramp",
    "RecordDraws",
    "Scheduled",
    "SharedDraws",
    "assign_shards",
    "calibrate",
    "calibrate_batch_size",
    "calibrate_steps",
    "data_free_clip_norm",
    "declare",
    "fit",
    "load_checkpoint",
    "private_clip_norm",
    "save_checkpoint",
    "shard_records",
    "shard_size",
    "synthetic_records",
    "table_methods",
]
