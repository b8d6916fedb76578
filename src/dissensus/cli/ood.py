"""``dissensus ood``: detection of unknown inputs by the scores of one or more runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus.cli.options import AsJson, draw, print_result, say, with_options
from dissensus.runs import Detect

Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, one for each method.", show_default=False)
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for ood.json and figures.",
        show_default="ood/ in the run; ./ood for several runs",
    ),
]
Plots = Annotated[bool, typer.Option(help="Draw figures (needs matplotlib).")]
CsvFile = Annotated[
    Path | None, typer.Option("--csv", help="Also write the table as CSV.", show_default=False)
]
DetectorFile = Annotated[
    Path | None,
    typer.Option(
        help="Write the first score with its threshold, for ds.Detector.load. Without --scores it "
        "is the best one for the run's objective.",
        show_default=False,
    ),
]


@with_options
def ood(
    runs: Runs,
    options: Detect,
    out: Out = None,
    plots: Plots = True,
    csv_file: CsvFile = None,
    as_json: AsJson = False,
    save_detector: DetectorFile = None,
) -> None:
    """
    Detect the unknown: how well do an ensemble's scores separate unknown inputs from known ones?

    Each RUN is a method. --ood names unknown inputs and may be repeated: images by name (svhn,
    cifar10, cifar100, mnist, fashion_mnist, kmnist), corrupt:SEVERITY or corrupt:KIND:SEVERITY of
    the run's test images, an extra set of the run's data, a file (.npz, .npy, a table), or a folder
    of images. The table shows AUROC by the leading score, or by the --scores that you name; --all
    adds every other score and measure. AUROC, AUPR and FPR95 take OOD as positive, with bootstrap
    intervals. Thresholds accept --accept of the validation split, never of what is tested on. Sets
    with labels also show the accuracy of the ensemble, of its soups and of its members. ood.json
    holds the numbers, ROC curves and histograms, examples-*.npz the most and least divergent
    images, for `dissensus report`.

    --tune trains a copy of the members for two epochs to disagree on strangers, inputs made from
    the training data, and adds its scores as NAME (tuned). The run itself stays as it is.

    Instead of a run, give a .safetensors or .npz file of predictions; --ood then names such files.

    Examples

      dissensus ood runs/ldr --ood corrupt:5

      dissensus ood runs/independent runs/ldr --near corrupt:1 --far corrupt:5 --out ood

      dissensus ood runs/ldr --ood runs/adp/robustness/adversarial.npz --scores pds,vim,combined

      dissensus ood runs/independent --ood corrupt:5 --tune --save-detector tuned.json

      dissensus ood runs/ldr --ood corrupt:contrast:3 --save-detector detector.json --all

      dissensus ood runs/ldr/predictions/test.safetensors
      --ood runs/ldr/predictions/val.safetensors --csv table.csv

    Examples that need other data or packages

      dissensus ood runs/ldr --ood my_folder/ --far mnist --far kmnist

      dissensus ood id.npz --ood other.npz --key outputs=logits
    """
    if save_detector is not None and len(runs) > 1:
        raise ValueError("--save-detector is for one run; name the one that you deploy")
    from dissensus.runs import detect

    detections = detect(runs, options, progress=not as_json)
    folder = out or detections.folder
    detections.save(folder)
    if csv_file is not None:
        detections.save_table(csv_file)
    figures = draw(detections, folder) if plots else []
    print_result(detections, as_json=as_json)
    if not as_json:
        say(f"Record: {folder / 'ood.json'}" + (f", and {len(figures)} figures" if figures else ""))
    if save_detector is not None:
        detector = detections.detector()
        detector.save(save_detector)
        if not as_json:
            load = f'ds.Detector.load("{save_detector}", ens)'
            say(f"Detector: {save_detector}, by {detector.score_name}; load it with {load}")
