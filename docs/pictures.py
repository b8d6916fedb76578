"""Pictures of the guides, drawn from scikit-learn's digits: ``python docs/pictures.py``.

``images/strangers.svg`` shows digits and the strangers made of them, ``images/tuned.svg`` the
scores of known and unknown digits before and after a detector is tuned on strangers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import dissensus as ds
from dissensus.detection import compare
from dissensus.show import save
from dissensus.show.detection import histogram_plot
from dissensus.show.plot import Image, Plot

IMAGES = Path(__file__).parent / "images"


def draw_strangers(x: Tensor) -> None:
    """Eight digits, and eight strangers of each family for images."""
    generator = torch.Generator().manual_seed(0)
    rows = {"digits": x, "mosaic": None, "phase": None}
    for name in ("mosaic", "phase"):
        rows[name] = ds.strangers.STRANGERS[name](x, generator)
    panels = [
        Image(image.numpy(), "", "", "", "" if place else name)
        for name, images in rows.items()
        if images is not None
        for place, image in enumerate(images[:8].clamp(0, 1))
    ]
    save(Plot(panels, columns=8, size=(0.9, 0.9)), IMAGES / "strangers.svg")


def draw_scores(data: ds.data.Data) -> None:
    """Histograms of mutual information, of the members and of the tuned copy."""
    make = ds.models.make_factory("mlp", data.input_shape, data.outputs, hidden=(64, 64))
    ens = ds.Ensemble(make, members=5)
    settings = {"epochs": 60, "batch_size": 64, "optimizer": "adam:lr=2e-3", "progress": False}
    ds.fit(ens, data.train, **settings)
    detectors = {
        "mutual_information": ds.Detector(ens),
        "mutual_information (tuned)": ds.Detector(ens).tune(data.train, progress=False),
    }
    sets = {
        "known digits": data.test[0],
        "8 and 9": data.extra["held_out"][0],
        "corrupted digits": ds.data.corrupt_mixture(data.test[0], 4),
    }
    scores = {
        name: {score: detector.score(x) for score, detector in detectors.items()}
        for name, x in sets.items()
    }
    for detector in detectors.values():
        detector.fit(data.val[0])
    thresholds = {score: detector.threshold for score, detector in detectors.items()}
    study = compare(scores, "known digits", thresholds=thresholds, bootstrap=0)
    save(histogram_plot(study), IMAGES / "tuned.svg")
    for score, found in study.detection.items():
        print(score, {name: round(float(each.auroc), 3) for name, each in found.items()})


def main() -> None:
    torch.set_num_threads(1)
    data = ds.data.load("digits", hold_out=["8", "9"])
    draw_strangers(data.train[0][:64])
    draw_scores(data)


if __name__ == "__main__":
    main()
