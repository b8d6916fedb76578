"""Detections: what `detect` is asked for, and how well scores recognise unknown inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from dissensus.runs.folder import RESULTS
from dissensus.runs.prediction_files import keys_option, probs_option
from dissensus.tools.files import write_csv, write_npz
from dissensus.tools.records import environment, write_record
from dissensus.tools.specs import split_specs
from dissensus.tools.verbs import Result, data_dir_option, device_option, option, trust_option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dissensus.detection import Detector, Divergent, Study
    from dissensus.runs.accuracy import Accuracies

Record = Mapping[str, Any]
T = TypeVar("T")

#: Measures: key, title, and whether more is better.
_MEASURES = {
    "auroc": ("AUROC", True),
    "fpr95": ("FPR95 (lower is better)", False),
    "aupr_out": ("AUPR, OOD positive", True),
    "aupr_in": ("AUPR, ID positive", True),
}

#: Ways to decide, as tables call them.
_WAYS = {
    "ensemble": "prediction ensemble",
    "uniform_soup": "uniform soup",
    "greedy_soup": "greedy soup (chosen on val)",
    "mean_member": "single member, mean",
    "oracle": "oracle member (upper bound)",
}


@dataclass(frozen=True)
class Detect:
    """Options of ``runs.detect``.

    ``near`` and ``far`` are groups of unknown sets. They are tested like those of ``unknown`` and
    need not be named there as well.
    """

    known: str = option("test", "Known inputs: test, val, or a file or folder.", flag="--id")
    unknown: tuple[str, ...] = option((), "Unknown inputs; may be repeated.", flag="--ood")
    near: tuple[str, ...] = option((), "The same, in the group of near sets.")
    far: tuple[str, ...] = option((), "The same, in the group of far sets.")
    scores: tuple[str, ...] = option(
        (),
        "Scores with commas between them, or all; `dissensus scores` lists them. "
        "NAME:temperature=fit takes the temperature that suits the validation split.",
        default_text="a dozen, first the best for the run's objective",
    )
    features: str | None = option(
        None,
        "Features for mahalanobis, knn and other scores that are fitted to training data: inputs, "
        "penultimate, or a module of the members.",
        default_text="penultimate",
    )
    tune: bool = option(
        False,
        "Also score by a copy of the members that learns to disagree on strangers, inputs made "
        "from the training data; predictions stay those of the run.",
    )
    tune_epochs: int | None = option(
        None, "Epochs of --tune.", min=1, default_text="2, and at least 100 steps"
    )
    strangers: str = option(
        "strangers", "The mix of strangers, such as strangers:mosaic=3,phase=1."
    )
    fit_rows: int = option(10_000, "Training rows to which scores of features are fitted.")
    neighbours: int = option(50, "k of knn.")
    groups: str | None = option(
        None, "The name of an array of groups in .npz files, for worst-group accuracy."
    )
    accept: float = option(0.95, "Share of validation inputs to accept.")
    bootstrap: int = option(200, "Replicates for intervals; 0 for no intervals.")
    limit: int | None = option(None, "At most this many rows of each set, drawn at random.")
    every: bool = option(
        False, "Print all tables: every score and measure, accuracy.", flag="--all"
    )
    accuracy: bool = option(True, "Measure the accuracy of soups and members under shift.")
    seed: int = option(0, "Seed of the bootstrap, of corruptions and of limits.")
    batch_size: int = option(512, "Rows at once.")
    keys: tuple[str, ...] | dict[str, Any] = keys_option()
    probs: bool = probs_option()
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()
    device: str = device_option()

    @property
    def sets(self) -> list[str]:
        """All unknown sets by the texts that name them, each once."""
        return list(dict.fromkeys([*self.unknown, *self.near, *self.far]))

    @property
    def score_names(self) -> list[str]:
        """The scores asked for, one by one; none stands for the usual ones."""
        return [name for text in self.scores for name in split_specs(text)]


@dataclass(frozen=True, eq=False)
class MethodDetection:
    """One run, or file of predictions: its scores compared, and its accuracy on labelled sets.

    ``unknown`` has the name of each unknown set by the text that asked for it. Of a run, there are
    the fitted ``detectors`` by the names of their scores; ``divergent``, the images of each set on
    which members agree least and most; ``strangers``, some training images and what they became for
    members to disagree on; the ``temperature`` that was fitted, and how members were tuned.
    """

    study: Study
    unknown: Mapping[str, str]
    accuracy: Mapping[str, Accuracies] = field(default_factory=dict)
    detectors: Mapping[str, Detector] = field(default_factory=dict)
    divergent: Mapping[str, Divergent] = field(default_factory=dict)
    strangers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    temperature: float | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Detections(Result):
    """How well the scores of each method recognise unknown inputs; ``methods`` by name."""

    options: Detect
    runs: Sequence[Path]
    methods: Mapping[str, MethodDetection]

    @property
    def folder(self) -> Path:
        """The usual folder for the record and figures: ``ood``, in the run if there is one."""
        single = len(self.runs) == 1 and self.runs[0].is_dir()
        return self.runs[0] / "ood" if single else Path("ood")

    @cached_property
    def record(self) -> dict[str, Any]:
        """Everything as plain values.

        ``detection`` has one row for each method, score and set; ``curves`` the points of its ROC
        curve (``fpr``, ``tpr``); ``histograms`` one row for each method and score (``edges``,
        ``share[set]``, ``threshold``); ``accuracy[method][set]`` the accuracy of each way to
        decide; ``examples`` one row for each divergent image, ``strangers`` one for each image of
        the training data and each stranger, with the file and place of its pixels.
        """
        from dissensus.detection import curve_rows, detection_rows, group_means, histogram_rows

        def rows(make: Callable[[Study], list[dict[str, Any]]]) -> list[dict[str, Any]]:
            return [{"method": name, **row} for name, s in studies.items() for row in make(s)]

        settings = {
            key: [str(item) for item in value] if isinstance(value, tuple) else value
            for key, value in asdict(self.options).items()
            if key not in ("data_dir", "trust", "device", "every")
        }
        groups = self._groups()
        studies = {name: method.study for name, method in self.methods.items()}
        return {
            "format": RESULTS["ood"][1],
            "runs": [str(run) for run in self.runs],
            "options": settings,
            "id": {name: study.known for name, study in studies.items()},
            "groups": groups,
            "detection": rows(detection_rows),
            "group_means": [
                {"method": name, "score": score, "group": group, **means}
                for name, study in studies.items()
                for score, sets in study.detection.items()
                for group, means in group_means(sets, groups).items()
            ],
            "tuning": {name: dict(method.tuning) for name, method in self.methods.items()},
            "temperatures": {name: method.temperature for name, method in self.methods.items()},
            "curves": rows(curve_rows),
            "histograms": rows(histogram_rows),
            "accuracy": {
                name: {part: values.record() for part, values in method.accuracy.items()}
                for name, method in self.methods.items()
            },
            "environment": environment(),
            "examples": [
                row for name, method in self.methods.items() for row in _example_rows(name, method)
            ],
            "strangers": [
                {"method": name, "kind": kind, "file": _strangers_file(name, kind), "image": place}
                for name, method in self.methods.items()
                for kind, images in method.strangers.items()
                for place in range(len(images))
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """The :attr:`record`."""
        return self.record

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each method, score and set."""
        rows: list[dict[str, Any]] = self.record["detection"]
        return rows

    def headline(self) -> str:
        """The methods, and how many rows there are."""
        return (
            f"{', '.join(self.methods)}: {len(self.to_rows())} pairs of a score and an unknown set"
        )

    def display(self) -> Iterable[RenderableType]:
        """AUROC by the leading score; with the option ``every`` all measures and accuracy."""
        return (record_tables if self.options.every else leading_table)(self.record)

    def save(self, path: str | Path | None = None) -> None:
        """Write ``ood.json`` and files of images to a folder, :attr:`folder` if none.

        ``images`` in ``examples-METHOD.npz`` and, where there are strangers, in
        ``strangers-METHOD.npz`` and ``known-METHOD.npz`` are uint8 ``[images, channels, height,
        width]``.
        """
        folder = self.folder if path is None else Path(path)
        for name, method in self.methods.items():
            if method.divergent:
                write_npz(folder / _examples_file(name), {"images": _image_bytes(method)})
            for kind, images in method.strangers.items():
                write_npz(folder / _strangers_file(name, kind), {"images": images})
        write_record(folder / "ood.json", self.record)

    def save_table(self, path: str | Path) -> None:
        """Write :meth:`to_rows` as CSV."""
        rows = self.to_rows()
        write_csv(path, rows[0], (row.values() for row in rows))

    def detector(self, score: str | None = None) -> Detector:
        """The first method's detector with ``score``, by default its first score, fitted to val."""
        detectors = next(iter(self.methods.values())).detectors
        if not detectors:
            raise ValueError("a detector needs a run, and this is a file of predictions")
        found = detectors[score or next(iter(detectors))]
        if found.threshold is None:
            raise ValueError("a detector needs a run with a validation split, for the threshold")
        return found

    def _groups(self) -> dict[str, list[str]]:
        """The names of the near and far sets."""
        unknown = next(iter(self.methods.values())).unknown
        groups = {"near": self.options.near, "far": self.options.far}
        return {
            group: [unknown[text] for text in dict.fromkeys(texts)]
            for group, texts in groups.items()
            if texts
        }


# ---- records ------------------------------------------------------------------------------------


def _example_rows(name: str, method: MethodDetection) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for part, divergent in method.divergent.items():
        for kind, examples in (("most", divergent.most), ("least", divergent.least)):
            for example in examples:
                rows.append(
                    {
                        "method": name,
                        "set": part,
                        "kind": kind,
                        "score": divergent.score,
                        "value": example.score,
                        "predicted": example.predicted,
                        "others": list(example.others),
                        "truth": example.truth,
                        "file": _examples_file(name),
                        "image": len(rows),
                    }
                )
    return rows


def _image_bytes(method: MethodDetection) -> NDArray[Any]:
    """The images of :func:`_example_rows`, in the same order."""
    import numpy as np

    return np.stack(
        [
            np.rint(example.image * 255).astype(np.uint8)
            for divergent in method.divergent.values()
            for example in (*divergent.most, *divergent.least)
        ]
    )


def _strangers_file(method: str, kind: str) -> str:
    return f"{'strangers' if kind == 'stranger' else 'known'}-{file_name(method)}.npz"


def _examples_file(method: str) -> str:
    return f"examples-{file_name(method)}.npz"


def file_name(name: str) -> str:
    """A name that can be part of a file's.

    >>> file_name("corrupt:fog:3")
    'corrupt-fog-3'
    """
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "run"


# ---- tables -------------------------------------------------------------------------------------


def leading_table(record: Record) -> Iterator[RenderableType]:
    """AUROC of each method by its first score, or by those that were asked for."""
    keys = _keys(record["detection"])
    if not record["options"]["scores"]:
        plain = [key for key in keys if not key[1].endswith(" (tuned)")]
        first = dict(reversed(plain))
        keys = [key for key in keys if key not in plain or first[key[0]] == key[1]]
    yield DetectionTable(record, "auroc", tuple(keys))
    yield (
        "0.5 is chance, 1 is perfect; * is not distinguishable from the best of its column. Other "
        "scores, FPR95, AUPR and accuracy: --all"
    )
    for method, tuning in record["tuning"].items():
        if tuning:
            yield (
                f"{method}: (tuned) marks scores of a copy of the members, trained for "
                f"{tuning['epochs']} more epochs ({tuning['objective']}, {tuning['strangers']}); "
                "predictions are those of the run"
            )


def record_tables(record: Record) -> Iterator[RenderableType]:
    """Detection by measure, shares flagged, accuracy, and fitted temperatures."""
    for measure in _MEASURES:
        yield DetectionTable(record, measure)
    if any(row["flagged"] is not None for row in record["detection"]):
        yield _flagged_table(record)
    for kind, title in (("overall", "Accuracy"), ("worst_group", "Accuracy of the worst group")):
        if table := _accuracy_table(record, kind, title):
            yield table
    for method, temperature in record["temperatures"].items():
        if temperature is not None:
            yield f"{method}: temperature {temperature:.4g}, fitted to the validation split"


@dataclass(frozen=True)
class DetectionTable:
    """One measure by method, score and set, with the means of groups at the right.

    What is not distinguishable from the best of its column is marked (``among_best``); intervals
    are shown where the terminal is wide enough. ``keys`` are the methods and scores to show, all of
    them if there are none.
    """

    record: Record
    measure: str
    keys: tuple[tuple[str, str], ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        title, more = _MEASURES[self.measure]
        rows, groups = self.record["detection"], list(self.record["groups"])
        keys, sets = self.keys or _keys(rows), _unique(row["set"] for row in rows)
        cells = {(r["method"], r["score"], r["set"]): r for r in rows}
        means = {(r["method"], r["score"], r["group"]): r for r in self.record["group_means"]}
        names = max(len(method) + len(score) for method, score in keys) + 6
        intervals = names + len(sets) * 23 + len(groups) * 12 <= options.max_width
        columns = [[cells[*key, name] for key in keys] for name in sets]
        columns += [[means[*key, group] for key in keys] for group in groups]
        marked = [_marked_cells(column, self.measure, more, intervals) for column in columns]
        note = "" if intervals else " (intervals: --csv, --json)"
        headings = ["score", *sets, *(f"mean {group}" for group in groups)]
        yield _table(title + note, headings, keys, zip(*marked, strict=True))


def _marked_cells(
    rows: Sequence[Record], measure: str, more: bool, intervals: bool
) -> list[RenderableType]:
    """One column: the best, and what is not distinguishable from it, have a star."""
    from dissensus.measures import Estimate, among_best

    values = []
    for row in rows:
        ends = (row.get(f"{measure}_{end}") for end in ("low", "high"))
        values.append(Estimate(row[measure], *(math.nan if end is None else end for end in ends)))
    texts = [str(value) if intervals else f"{value:.3f}" for value in values]
    marks = among_best(values, highest=more)
    return [
        Text(f"*{text}", "bold green") if mark else text
        for text, mark in zip(texts, marks, strict=True)
    ]


def _flagged_table(record: Record) -> Table:
    """The share of each set above the threshold of the validation split."""
    rows = [row for row in record["detection"] if row["flagged"] is not None]
    keys, sets = _keys(rows), _unique(row["set"] for row in rows)
    title = f"Flagged at the threshold that accepts {record['options']['accept']:.0%} of val"
    cells = {(row["method"], row["score"], row["set"]): row for row in rows}
    shares = [
        [cells[*key, sets[0]]["flagged_id"], *(cells[*key, name]["flagged"] for name in sets)]
        for key in keys
    ]
    lines = ([f"{share:.1%}" for share in line] for line in shares)
    return _table(title, ["score", "known (ID)", *sets], keys, lines)


def _accuracy_table(record: Record, kind: str, title: str) -> Table | None:
    """Accuracy by method, way to decide and labelled set; None where no set has labels."""
    methods = record["accuracy"]
    sets = _unique(name for parts in methods.values() for name in parts if parts[name][kind])
    lines = {
        (method, title): [_accuracy(parts.get(name, {}).get(kind, {}).get(way)) for name in sets]
        for method, parts in methods.items()
        for way, title in _WAYS.items()
        if any(way in part[kind] for part in parts.values())
    }
    return _table(title, ["who decides", *sets], lines, lines.values()) if sets else None


def _accuracy(estimate: Record | None) -> str:
    if estimate is None:
        return ""
    low, high = estimate["low"], estimate["high"]
    interval = "" if low is None else f" [{low:.1%}, {high:.1%}]"
    return f"{estimate['value']:.1%}{interval}"


def _table(
    title: str,
    headings: Sequence[str],
    keys: Iterable[tuple[str, str]],
    lines: Iterable[Iterable[RenderableType]],
) -> Table:
    """A table with the rows ``lines``, after a method, named once, and a second name."""
    look: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=title, title_justify="left", title_style="bold", **look)
    table.add_column("method", style="cyan", overflow="fold")
    table.add_column(headings[0], no_wrap=True)
    for name in headings[1:]:
        table.add_column(name, justify="right", overflow="fold")
    last = None
    for (method, name), line in zip(keys, lines, strict=True):
        table.add_row(method if method != last else "", name, *line)
        last = method
    return table


def _keys(rows: Iterable[Record]) -> list[tuple[str, str]]:
    return _unique((row["method"], row["score"]) for row in rows)


def _unique(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))
