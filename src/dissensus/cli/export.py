"""``dissensus export``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import DataDir, Trust

if TYPE_CHECKING:
    from dissensus.detection import Detector
    from dissensus.ensemble import Ensemble

__all__ = ["HELP", "export"]

HELP = """
Write a run's ensemble for use elsewhere: one file for a runtime, or a folder to hand on.

onnx and pt2 are one graph that needs no Dissensus. It takes inputs x in the units of the source
(what training standardised is standardised inside) and gives what `predict` writes: probs, or mean
for a regression, members \\[members, batch, outputs], a score_NAME for each --score, and is_ood
with a --detector. The batch may have any size. The file also says its classes, columns, scores and
versions. To load a pt2 is to load a program: take it from people whose programs you would run.

hub is a folder with model.safetensors, config.json and README.md, a model card of what the run's
records say; ds.load brings it back, and no file in it can run code. Choose a license and add it.

[bold]Examples[/bold]

  [cyan]dissensus export runs/ldr --out ldr.onnx[/cyan]

  [cyan]dissensus export runs/ldr --out ldr.pt2 --score pds --detector detector.json[/cyan]

  [cyan]dissensus export runs/photos --out photos.onnx --bytes[/cyan]   pixels from 0 to 255

  [cyan]dissensus export runs/ldr --format hub --out ldr-ensemble/ --license apache-2.0[/cyan]
"""

_SUFFIXES = {".onnx": "onnx", ".pt2": "pt2"}
_FORMATS = ("onnx", "pt2", "hub")


def export(
    run: Annotated[Path, typer.Argument(help="The run folder.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", help="The file, or the new folder.", show_default=False)
    ],
    how: Annotated[
        str | None,
        typer.Option(
            "--format", help="onnx, pt2 or hub; else by the name of --out.", show_default=False
        ),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            help="A score of `dissensus scores` to give; may be repeated.",
            show_default="the detector's, pds, or variance for a regression",
        ),
    ] = None,
    detector: Annotated[
        Path | None,
        typer.Option(
            "--detector",
            help="A detector of `dissensus ood --save-detector`, for is_ood.",
            show_default=False,
        ),
    ] = None,
    pixels: Annotated[
        bool, typer.Option("--bytes", help="Images come as bytes, 0 to 255.")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", help="What to call it.", show_default="the run's folder")
    ] = "",
    license: Annotated[
        str | None, typer.Option("--license", help="For the card of hub.", show_default=False)
    ] = None,
    diagnosis: Annotated[
        bool,
        typer.Option("--diagnosis/--no-diagnosis", help="Diagnose the run for the card of hub."),
    ] = True,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Write a run for use elsewhere; the help text is ``HELP``."""
    from dissensus.cli.shown import say
    from dissensus.detection import Detector
    from dissensus.runs import load

    kind = _kind(how, out)
    _check_options(kind, score=score, pixels=pixels, license=license)
    ens = load(run, trust=trust)
    name = name or run.resolve().name
    found = None if detector is None else Detector.load(detector, ens)
    if kind == "hub":
        _hub(run, out, found, name, license, data_dir, diagnosis=diagnosis, trust=trust)
        return
    told = _graph(kind, run, ens, out, score, found, name, pixels=pixels)
    entry = told["input"]
    size = out.stat().st_size / 2**20
    say(f"{out}: {size:.1f} MiB, {told['members']} members, {told['combine']}")
    shape = ", ".join(str(part) for part in entry["shape"])
    say(f"in   {entry['name']}  [{shape}] {entry['dtype']}, {entry['units']}")
    for output, meaning in told["outputs"].items():
        say(f"out  {output}  {meaning}")


def _kind(how: str | None, out: Path) -> str:
    kind = how or _SUFFIXES.get(out.suffix.lower())
    if kind not in _FORMATS:
        got = "no --format" if how is None else f"--format {how}"
        raise ValueError(f"say --format onnx, pt2 or hub, got {got} and --out {out.name}")
    if kind != "hub" and _SUFFIXES.get(out.suffix.lower()) != kind:
        raise ValueError(f"--out must end in .{kind} for --format {kind}, got {out.name}")
    return kind


def _check_options(
    kind: str, *, score: list[str] | None, pixels: bool, license: str | None
) -> None:
    if kind == "hub" and (score or pixels):
        raise ValueError("--score and --bytes are of onnx and pt2; leave them out for hub")
    if kind != "hub" and license is not None:
        raise ValueError("--license is for the card of --format hub; leave it out")


def _graph(
    kind: str,
    run: Path,
    ens: Ensemble,
    out: Path,
    score: list[str] | None,
    detector: Detector | None,
    name: str,
    *,
    pixels: bool,
) -> dict[str, Any]:
    from dissensus.export import example_for, to_onnx, to_pt2
    from dissensus.runs import Facts

    facts = Facts.read(run)
    if facts is None:
        raise ValueError(
            f"{run} does not know its data, as it was not made by `dissensus train`; use "
            "dissensus.export.to_onnx in Python, with an example of its inputs"
        )
    write = {"onnx": to_onnx, "pt2": to_pt2}[kind]
    with _waiting(f"Tracing {ens.members} members"):
        example = example_for(facts, pixels=pixels)
        return write(ens, example, out, score=score, detector=detector, facts=facts, name=name)


def _hub(
    run: Path,
    out: Path,
    detector: Detector | None,
    name: str,
    license: str | None,
    data_dir: Path | None,
    *,
    diagnosis: bool,
    trust: bool,
) -> None:
    from dissensus.cli.shown import command, note, say
    from dissensus.export import found_in, save_run

    found = None
    if diagnosis:
        with _waiting("Diagnosing the run for its card"):
            found = _diagnosed(run, data_dir, trust=trust)
    settings: dict[str, Any] = {"name": name, "license": license, "trust": trust}
    written = save_run(run, out, detector=detector, diagnosis=found, **settings)
    for text in found_in(run).notes:
        note(text)
    say(f"Written to {out}: {', '.join(path.name for path in written)}")
    code = [path.name for path in written if path.suffix == ".py"]
    if code:
        say(f"{', '.join(code)} is code of yours, copied; what it imports is not in the folder")
    if license is None:
        say("No license is chosen; name one at the top of README.md before you hand it on")
    words = ["dissensus", "predict", out, "--input", "x.npz", "--output", "p.npz"]
    say(f"{command(*words, *(['--trust'] if code else []))} uses it")


def _diagnosed(run: Path, data_dir: Path | None, *, trust: bool) -> dict[str, Any] | None:
    """As `dissensus diagnose RUN` says; without its data, from the predictions that it saved."""
    from dissensus.cli.shown import note
    from dissensus.diagnostics import diagnose
    from dissensus.outputs import Predictions
    from dissensus.runs import diagnose as diagnose_run

    saved = run / "predictions" / "test.safetensors"
    try:
        result = diagnose_run(run, data_dir=data_dir, trust=trust, device="cpu")
        return result.diagnosis.to_dict()
    except (ValueError, OSError) as error:
        if not saved.is_file():
            note(f"no diagnosis for the card: {' '.join(str(error).split())}")
            return None
        note(f"diagnosed on saved test predictions alone: {' '.join(str(error).split())}")
        return diagnose(None, Predictions.load(saved)).to_dict()


@contextmanager
def _waiting(text: str) -> Iterator[None]:
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
