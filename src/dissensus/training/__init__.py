"""Training: the loop, optimisers for some of the members, checkpoints that survive a kill."""

from __future__ import annotations

from dissensus.training.callbacks import TRACKERS, MLflow, TensorBoard, WandB
from dissensus.training.distributed.ranks import Distributed
from dissensus.training.evaluation import predict
from dissensus.training.fit import NonFiniteLoss, Stopped, fit
from dissensus.training.fit_fleet import Training, fit_fleet
from dissensus.training.optim import MemberOptimizer, Optimizer, Schedule, parse_schedule
from dissensus.training.recipe import Recipe
from dissensus.training.run_state import History
from dissensus.training.torch_optim import TorchSchedule

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
