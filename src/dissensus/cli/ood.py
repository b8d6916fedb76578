"""``dissensus ood``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import DataDir, Device, Trust

if TYPE_CHECKING:
    from dissensus.shift import Prepared, Question, Study

__all__ = ["HELP", "ood"]

HELP = """
Detect the unknown: how well do an ensemble's scores tell strange inputs from known ones?

Each RUN is a method. --ood names unknown inputs and may be repeated: images by name (svhn, cifar10,
cifar100, mnist, fashion_mnist, kmnist), corrupt:SEVERITY or corrupt:KIND:SEVERITY of the run's test
images, an extra set of the run's data, a file (.npz, .npy, a table), or a folder of images. AUROC,
AUPR and FPR95 take OOD as positive; their intervals are bootstrap ones. Thresholds accept --tpr of
the validation split, never of what is tested on. Sets with labels also show the accuracy of the
ensemble, of its soups and of its members. The numbers, ROC curves and histograms are kept in
ood.json, the most and least divergent images in examples-*.npz, for `dissensus report`.

Instead of a run, a .safetensors or .npz file of predictions; --ood are such files then.

[bold]Examples[/bold]

  [cyan]dissensus ood runs/ldr --ood corrupt:5 --ood my_folder/[/cyan]

  [cyan]dissensus ood runs/independent runs/ldr --near corrupt:3 --far mnist --far kmnist[/cyan]

  [cyan]dissensus ood runs/ldr --ood x.npz --scores pds,bma,knn --save-detector detector.json[/cyan]

  [cyan]dissensus ood id.safetensors --ood other.safetensors --csv table.csv[/cyan]
"""


def ood(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, one a method.", show_default=False)
    ],
    known: Annotated[
        str, typer.Option("--id", help="Known inputs: test, val, or a file or folder.")
    ] = "test",
    unknown: Annotated[
        list[str] | None,
        typer.Option("--ood", help="Unknown inputs; may be repeated.", show_default=False),
    ] = None,
    near: Annotated[
        list[str] | None,
        typer.Option("--near", help="The same, in the group of near sets.", show_default=False),
    ] = None,
    far: Annotated[
        list[str] | None,
        typer.Option("--far", help="The same, in the group of far sets.", show_default=False),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            "--scores",
            help="Scores with commas between them, or all; `dissensus scores` lists them. Beside "
            "them mahalanobis, relative_mahalanobis and knn on features, and NAME:temperature=fit "
            "with the temperature that suits the validation split.",
            show_default="a dozen",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            help="Features for mahalanobis and knn: inputs, penultimate, or a module of members.",
            show_default="inputs if they are flat, else penultimate",
        ),
    ] = None,
    fit_rows: Annotated[
        int, typer.Option("--fit-rows", help="Training rows that features are fitted to.")
    ] = 10_000,
    neighbours: Annotated[int, typer.Option("--neighbours", help="k of knn.")] = 50,
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            help="Name of an array of groups in .npz files, for worst-group accuracy.",
            show_default=False,
        ),
    ] = None,
    tpr: Annotated[
        float, typer.Option("--tpr", help="Share of validation inputs to accept.")
    ] = 0.95,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", help="Replicates for intervals; 0 for none.")
    ] = 200,
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="At most so many rows of each set.", show_default=False),
    ] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy/--no-accuracy", help="Soups and members under shift.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for ood.json and figures.",
            show_default="ood/ in the run; ./ood for several runs",
        ),
    ] = None,
    plots: Annotated[
        bool, typer.Option("--plots/--no-plots", help="Draw figures (needs matplotlib).")
    ] = True,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", help="Also write the table as CSV.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    save_detector: Annotated[
        Path | None,
        typer.Option(
            "--save-detector",
            help="Write the first score with its threshold, for ds.Detector.load.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="For bootstrap, corruptions, limits.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Rows at once.")] = 512,
    data_dir: DataDir = None,
    trust: Trust = False,
    device: Device = "auto",
) -> None:
    """Detect the unknown; the help text is ``HELP``."""
    from dissensus.cli.ood_record import keep_study, write_csv
    from dissensus.cli.ood_shown import StudyProgress, show
    from dissensus.cli.shown import say
    from dissensus.shift import Question

    question = Question(
        id=known,
        ood=tuple(unknown or ()),
        near=tuple(near or ()),
        far=tuple(far or ()),
        scores=None if scores is None else tuple(filter(None, scores.split(","))),
        features=features,
        fit_rows=fit_rows,
        neighbours=neighbours,
        groups=groups,
        limit=limit,
        tpr=tpr,
        bootstrap=bootstrap,
        accuracy=accuracy,
        batch_size=batch_size,
        seed=seed,
    )
    if save_detector is not None and len(runs) > 1:
        raise ValueError("--save-detector is for one run; name the one that you deploy")
    names = _method_names(runs)
    studies: dict[str, Study] = {}
    prepared: dict[str, Prepared] = {}
    with StudyProgress(names, show=not as_json) as progress:
        for run, name in zip(runs, names, strict=True):
            if run.is_file():
                studies[name] = _of_files(run, question, progress)
                continue
            progress.stage(name, "loading")
            made = _prepared(run, question, data_dir, trust=trust, device=device)
            progress.start(name, made.rows, len(made.scorer.names) * len(made.unknown))
            prepared[name], studies[name] = made, made.study(progress.step)
    folder = out or (runs[0] / "ood" if len(runs) == 1 and runs[0].is_dir() else Path("ood"))
    record = keep_study(folder, question, runs, studies, prepared)
    if csv_file is not None:
        write_csv(csv_file, record["detection"])
    if save_detector is not None:
        _save_detector(next(iter(prepared.values()), None), tpr, save_detector)
    drawn = _draw(folder, studies, prepared) if plots and _can_draw() else []
    if as_json:
        print(json.dumps(record, indent=1))
        return
    show(record)
    say(f"Record: {folder / 'ood.json'}" + (f", and {len(drawn)} figures" if drawn else ""))
    if save_detector is not None:
        say(f"Detector: {save_detector}; {_loading(save_detector, prepared)} brings it back")


def _method_names(runs: list[Path]) -> list[str]:
    """The folders' names, or whole paths where names are the same."""
    names = [run.resolve().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(f"each RUN is one method, got the same one twice: {', '.join(names)}")
    return names


def _prepared(
    run: Path, question: Question, data_dir: Path | None, *, trust: bool, device: str
) -> Prepared:
    from dissensus.shift import prepare

    return prepare(run, question, data_dir=data_dir, trust=trust, device=device)


def _of_files(run: Path, question: Question, progress: Any) -> Study:
    from dissensus.shift import FileScorer, study_files

    if not question.sets:
        raise ValueError("name at least one file of unknown inputs with --ood, --near or --far")
    scorer = FileScorer(question.scores)
    progress.stage(run.name, "scoring")
    return study_files(
        scorer,
        run,
        [Path(text) for text in question.sets],
        bootstrap=question.bootstrap,
        seed=question.seed,
        steps=progress.step,
    )


def _save_detector(made: Prepared | None, tpr: float, path: Path) -> None:
    if made is None or made.val is None:
        raise ValueError("--save-detector needs a run with a validation split, for the threshold")
    detector = made.scorer.detector(made.scorer.names[0])
    detector.fit((x for x, _ in made.val.batches(made.scorer.batch_size)), tpr=tpr).save(path)


def _loading(path: Path, prepared: dict[str, Prepared]) -> str:
    """The Python that loads a saved detector."""
    (made,) = prepared.values()
    if made.scorer.features is None or made.scorer.names[0] not in made.scorer.distances:
        return f'ds.Detector.load("{path}", ens)'
    module = "" if made.question.features is None else f', "{made.question.features}"'
    return f'ds.Detector.load("{path}", ens, features=ds.shift.MemberFeatures(ens{module}))'


def _can_draw() -> bool:
    from importlib.util import find_spec

    from dissensus.cli.shown import note

    found = find_spec("matplotlib") is not None
    if not found:
        note("figures need matplotlib, which is not installed: pip install 'dissensus[plots]'")
    return found


def _draw(folder: Path, studies: dict[str, Study], prepared: dict[str, Prepared]) -> list[Path]:
    from dissensus.cli.ood_drawn import draw_examples, draw_study

    drawn = [path for name, found in studies.items() for path in draw_study(folder, name, found)]
    for name, made in prepared.items():
        drawn += draw_examples(folder, name, made, studies[name])
    return drawn
