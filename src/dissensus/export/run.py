"""Export of a run: one file for a runtime, or a folder to share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs import DataSummary, load
from dissensus.runs import diagnose as diagnose_run
from dissensus.tools.progress import ProgressBar
from dissensus.tools.verbs import REQUIRED, Result, collect, data_dir_option, option, trust_option

if TYPE_CHECKING:
    from dissensus.detection import Detector
    from dissensus.ensemble import Ensemble

_SUFFIXES = {".onnx": "onnx", ".pt2": "pt2"}


@dataclass(frozen=True)
class Export:
    """Options of :func:`export_run`."""

    out: Path = option(REQUIRED, "The file, or the new folder.")
    format: str | None = option(None, "onnx, pt2 or hub; by default the ending of --out decides.")
    score: tuple[str, ...] = option(
        (),
        "A score of `dissensus scores` to add; may be repeated.",
        default_text="the detector's, or the best for the run's objective",
    )
    detector: Path | None = option(
        None, "A detector of `dissensus ood --save-detector`, for is_ood."
    )
    pixels: bool = option(False, "Images come as bytes, 0 to 255.", flag="--bytes")
    name: str = option("", "The name of the model.", default_text="that of the run's folder")
    license: str | None = option(None, "The license, for the card of hub.")
    diagnosis: bool = option(True, "Diagnose the run for the card of hub.")
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()

    def __post_init__(self) -> None:
        name = Path(self.out).name
        if self.kind not in ("onnx", "pt2", "hub"):
            got = "no --format" if self.format is None else f"--format {self.format}"
            raise ValueError(f"say --format onnx, pt2 or hub, got {got} and --out {name}")
        if self.kind != "hub" and _SUFFIXES.get(Path(name).suffix.lower()) != self.kind:
            raise ValueError(f"--out must end in .{self.kind} for --format {self.kind}, got {name}")
        if self.kind == "hub" and (self.score or self.pixels):
            raise ValueError("--score and --bytes are for onnx and pt2; leave them out for hub")
        if self.kind != "hub" and self.license is not None:
            raise ValueError("--license is for the card of --format hub; leave it out")

    @property
    def kind(self) -> str | None:
        """The format asked for, or that of the ending of ``out``."""
        return self.format or _SUFFIXES.get(Path(self.out).suffix.lower())


@dataclass(frozen=True, repr=False)
class ExportedRun(Result):
    """The files that were written; ``metadata`` are those in an onnx or pt2 file.

    ``notes`` say what the card of a hub folder leaves out, and why.
    """

    out: Path
    files: Sequence[Path]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    notes: Sequence[str] = ()

    @property
    def code(self) -> list[str]:
        """Files of code in the folder."""
        return [file.name for file in self.files if file.suffix == ".py"]

    def to_dict(self) -> dict[str, Any]:
        """The files and the metadata."""
        files = [str(file) for file in self.files]
        return {"out": str(self.out), "files": files, "metadata": dict(self.metadata)}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each file: its name and its size in bytes."""
        return [{"file": file.name, "bytes": file.stat().st_size} for file in self.files]

    def display(self) -> Iterator[str]:
        """The inputs and outputs of the graph, or the files of the folder."""
        if self.metadata:
            yield from self._display_graph()
            return
        yield f"Written to {self.out}: {', '.join(file.name for file in self.files)}"
        if self.code:
            yield f"{', '.join(self.code)} is your code, copied; what it imports is not included"
        if self.license is None:
            yield "No license is chosen; name one at the top of README.md before you share it"

    def _display_graph(self) -> Iterator[str]:
        described, entry = self.metadata, self.metadata["input"]
        size = self.out.stat().st_size / 2**20
        yield f"{self.out}: {size:.1f} MiB, {described['members']} members, {described['combine']}"
        shape = ", ".join(str(part) for part in entry["shape"])
        yield f"in   {entry['name']}  [{shape}] {entry['dtype']}, {entry['units']}"
        for output, meaning in described["outputs"].items():
            yield f"out  {output}  {meaning}"


def export_run(
    run: str | Path, options: Export | None = None, *, progress: bool = False, **settings: Any
) -> ExportedRun:
    """Write a run's ensemble for use elsewhere; ``settings`` are the fields of :class:`Export`.

    ::

        ds.export.export_run("runs/ldr", out="ldr.onnx", score=["pds"])
        ds.export.export_run("runs/ldr", out="ldr-ensemble", format="hub", license="apache-2.0")
    """
    from dissensus.detection import Detector

    options = collect(Export, options, settings)
    ens = load(run, trust=options.trust)
    detector = None if options.detector is None else Detector.load(options.detector, ens)
    write = _write_folder if options.kind == "hub" else _write_graph
    return write(Path(run), ens, detector, options, progress)


def _write_graph(
    run: Path, ens: Ensemble, detector: Detector | None, options: Export, progress: bool
) -> ExportedRun:
    from dissensus.export.graph import to_onnx, to_pt2
    from dissensus.export.module import example_for

    summary = DataSummary.require(run, "dissensus.export.to_onnx, with an example of its inputs,")
    write = to_onnx if options.kind == "onnx" else to_pt2
    with ProgressBar(f"tracing {ens.members} members", show=progress):
        metadata = write(
            ens,
            example_for(summary, pixels=options.pixels),
            options.out,
            score=options.score or None,
            detector=detector,
            summary=summary,
            name=options.name or run.resolve().name,
        )
    return ExportedRun(Path(options.out), [Path(options.out)], metadata)


def _write_folder(
    run: Path, ens: Ensemble, detector: Detector | None, options: Export, progress: bool
) -> ExportedRun:
    from dissensus.export.card import read_results
    from dissensus.export.hub import save_run

    diagnosis, note = None, ""
    if options.diagnosis:
        with ProgressBar("diagnosing the run for its card", show=progress):
            diagnosis, note = _diagnose(run, options)
    results = read_results(run, diagnosis)
    files = save_run(
        run,
        options.out,
        detector=detector,
        results=results,
        name=options.name,
        license=options.license,
        trust=options.trust,
    )
    notes = [*([note] if note else []), *results.notes]
    return ExportedRun(Path(options.out), files, license=options.license, notes=notes)


def _diagnose(run: Path, options: Export) -> tuple[dict[str, Any] | None, str]:
    """The diagnosis of a run; without its data, of the predictions that it saved; and a note."""
    saved = run / "predictions" / "test.safetensors"
    try:
        result = diagnose_run(run, data_dir=options.data_dir, trust=options.trust, device="cpu")
        return result.diagnosis.to_dict(), ""
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        if not saved.is_file():
            return None, f"no diagnosis for the card: {reason}"
        result = diagnose_run(saved)
        return result.diagnosis.to_dict(), f"diagnosed on saved test predictions alone: {reason}"
