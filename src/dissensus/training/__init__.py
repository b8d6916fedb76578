"""Training: the loop, optimisers for some of the members, checkpoints that survive a kill."""

from __future__ import annotations

from dissensus.training.fit import NonFiniteLoss, fit
from dissensus.training.fit_fleet import Training, fit_fleet
from dissensus.training.history import History
from dissensus.training.layout import Distributed
from dissensus.training.optim import MemberOptimizer, Optimizer, Schedule, parse_schedule
from dissensus.training.predict import predict
from dissensus.training.recipe import Recipe
from dissensus.training.single_process import Stopped
from dissensus.training.torch_optim import TorchSchedule
from dissensus.training.trackers import TRACKERS, MLflow, TensorBoard, WandB

__all__ = [
    "TRACKERS",
    "Distributed",
    "History",
    "MLflow",
    "MemberOptimizer",
    "NonFiniteLoss",
    "Optimizer",
    "Recipe",
    "Schedule",
    "Stopped",
    "TensorBoard",
    "TorchSchedule",
    "Training",
    "WandB",
    "fit",
    "fit_fleet",
    "parse_schedule",
    "predict",
]
