"""Deep ensembles whose members disagree where it helps.

Public names load on first use, so that ``import dissensus`` is quick and ``dissensus --help``
answers without importing torch:

>>> import dissensus as ds
>>> sorted(set(ds.__all__) & {"decompose", "scores"})
['decompose', 'scores']
"""

from typing import TYPE_CHECKING

from dissensus._version import __version__
from dissensus.tools.lazy import lazy_attributes

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
        robustness,
        runs,
        scores,
        sweeps,
        training,
    )
    from dissensus.data import features, strangers
    from dissensus.decomposition import decompose
    from dissensus.detection import Detector
    from dissensus.diagnostics import diagnose
    from dissensus.ensemble import Ensemble
    from dissensus.outputs import Predictions, combine
    from dissensus.runs.load import load
    from dissensus.show import report
    from dissensus.training import History, Optimizer, Recipe, Training
    from dissensus.training.evaluation import predict
    from dissensus.training.fit import fit
    from dissensus.training.fit_fleet import fit_fleet

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
    "strangers",
    "sweeps",
    "training",
]

#: Where each public name is: a module of that name, or what stands here.
_EXPORTS = {name: name for name in __all__ if name != "__version__"} | {
    "Detector": "detection:Detector",
    "Ensemble": "ensemble:Ensemble",
    "History": "training:History",
    "Optimizer": "training:Optimizer",
    "Predictions": "outputs:Predictions",
    "Recipe": "training:Recipe",
    "Training": "training:Training",
    "combine": "outputs:combine",
    "decompose": "decomposition:decompose",
    "diagnose": "diagnostics:diagnose",
    "features": "data.features",
    "fit": "training:fit",
    "fit_fleet": "training:fit_fleet",
    "load": "runs:load",
    "predict": "training:predict",
    "report": "show.report",
    "strangers": "data.strangers",
}

__getattr__ = lazy_attributes(__name__, _EXPORTS)


def __dir__() -> list[str]:
    """List the public names whether they are loaded yet or not."""
    return sorted(set(globals()) | set(__all__))
