from dissensus.runs.hub_folder import CONFIG, FORMAT, WEIGHTS
from dissensus.runs.hub_folder import build_ensemble as build

__all__ = ["CONFIG", "FORMAT", "WEIGHTS", "build"]
