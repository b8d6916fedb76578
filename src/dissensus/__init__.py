"""Deep ensembles whose members disagree where it helps.

Public names load on first use, so that ``import dissensus`` is quick and ``dissensus --help``
answers without importing torch:

>>> import dissensus as ds
>>> sorted(set(ds.__all__) & {"decompose", "scores"})
['decompose', 'scores']
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dissensus._version import __version__

if TYPE_CHECKING:
    from dissensus import (
        calibration,
        data,
        decomposition,
        detection,
        diagnostics,
        diversity,
        ensemble,
        export,
        features,
        losses,
        models,
        objectives,
        outputs,
        robustness,
        runs,
        scores,
        shift,
        training,
    )
    from dissensus.decomposition import decompose
    from dissensus.detection import Detector
    from dissensus.diagnostics import diagnose
    from dissensus.ensemble import Ensemble
    from dissensus.outputs import Predictions, combine
    from dissensus.runs import load
    from dissensus.training import History, Optimizer, Recipe, Training, fit, fit_fleet, predict

__all__ = [
    "Detector",
    "Ensemble",
    "History",
    "Optimizer",
    "Predictions",
    "Recipe",
    "Training",
    "__version__",
    "calibration",
    "combine",
    "data",
    "decompose",
    "decomposition",
    "detection",
    "diagnose",
    "diagnostics",
    "diversity",
    "ensemble",
    "export",
    "features",
    "fit",
    "fit_fleet",
    "load",
    "losses",
    "models",
    "objectives",
    "outputs",
    "predict",
    "robustness",
    "runs",
    "scores",
    "shift",
    "training",
]

# Each public name and the module that defines it.
_EXPORTS = {
    "Detector": "detection",
    "Ensemble": "ensemble",
    "History": "training",
    "Optimizer": "training",
    "Predictions": "outputs",
    "Recipe": "training",
    "Training": "training",
    "combine": "outputs",
    "decompose": "decomposition",
    "diagnose": "diagnostics",
    "fit": "training",
    "fit_fleet": "training",
    "load": "runs",
    "predict": "training",
}

_SUBMODULES = {
    "calibration",
    "data",
    "decomposition",
    "detection",
    "diagnostics",
    "diversity",
    "ensemble",
    "export",
    "features",
    "losses",
    "models",
    "objectives",
    "outputs",
    "robustness",
    "runs",
    "scores",
    "shift",
    "training",
}


def __getattr__(name: str) -> object:
    """Import ``name`` when it is first asked for; afterwards it is an ordinary attribute."""
    value: object
    if name in _EXPORTS:
        value = getattr(import_module(f"dissensus.{_EXPORTS[name]}"), name)
    elif name in _SUBMODULES:
        value = import_module(f"dissensus.{name}")
    else:
        raise AttributeError(f"module 'dissensus' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names whether they are loaded yet or not."""
    return sorted(set(globals()) | set(__all__))
