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
        losses,
        models,
        objectives,
        outputs,
        report,
        robustness,
        runs,
        scores,
        sweeps,
        training,
    )
    from dissensus.data import features
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
    "report",
    "robustness",
    "runs",
    "scores",
    "sweeps",
    "training",
]

#: Where each public name is defined: a module, or a name in one after a colon.
_EXPORTS = {
    "Detector": "detection:Detector",
    "Ensemble": "ensemble:Ensemble",
    "History": "training:History",
    "Optimizer": "training:Optimizer",
    "Predictions": "outputs:Predictions",
    "Recipe": "training:Recipe",
    "Training": "training:Training",
    "calibration": "calibration",
    "combine": "outputs:combine",
    "data": "data",
    "decompose": "decomposition:decompose",
    "decomposition": "decomposition",
    "detection": "detection",
    "diagnose": "diagnostics:diagnose",
    "diagnostics": "diagnostics",
    "diversity": "diversity",
    "ensemble": "ensemble",
    "export": "export",
    "features": "data.features",
    "fit": "training:fit",
    "fit_fleet": "training:fit_fleet",
    "load": "runs:load",
    "losses": "losses",
    "models": "models",
    "objectives": "objectives",
    "outputs": "outputs",
    "predict": "training:predict",
    "report": "report",
    "robustness": "robustness",
    "runs": "runs",
    "scores": "scores",
    "sweeps": "sweeps",
    "training": "training",
}


def __getattr__(name: str) -> object:
    """Import ``name`` when it is first asked for; afterwards it is an ordinary attribute."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'dissensus' has no attribute {name!r}")
    module, _, attribute = _EXPORTS[name].partition(":")
    value: object = import_module(f"dissensus.{module}")
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names whether they are loaded yet or not."""
    return sorted(set(globals()) | set(__all__))
