"""Detection of unknown inputs: how well the scores of one or more runs recognise them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.prediction_files import array_keys, keys_option, probs_option
from dissensus.tools.files import write_csv, write_npz
from dissensus.tools.progress import ProgressBar
from dissensus.tools.records import environment, write_record
from dissensus.tools.specs import split_specs
from dissensus.tools.verbs import (
    Result,
    collect,
    data_dir_option,
    device_option,
    option,
    trust_option,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from dissensus.detection import Detector, Divergent, Study
    from dissensus.runs.accuracy import Accuracies
    from dissensus.runs.scoring import Setup


@dataclass(frozen=True)
class Detect:
    """Options of :func:`detect`.

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

    ``divergent`` are the images of each set on which members agree least and most, ``strangers``
    some training images and what they became for members to disagree on; ``setup`` is the run with
    its fitted scores. A file of predictions has none of these.
    """

    study: Study
    accuracy: Mapping[str, Accuracies] = field(default_factory=dict)
    divergent: Mapping[str, Divergent] = field(default_factory=dict)
    setup: Setup | None = None
    strangers: Mapping[str, NDArray[Any]] = field(default_factory=dict)


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

        settings = {
            key: [str(item) for item in value] if isinstance(value, tuple) else value
            for key, value in asdict(self.options).items()
            if key not in ("data_dir", "trust", "device", "every")
        }
        groups = self._groups()
        studies = {name: method.study for name, method in self.methods.items()}
        return {
            "format": "dissensus.ood/1",
            "runs": [str(run) for run in self.runs],
            "options": settings,
            "id": {name: study.known for name, study in studies.items()},
            "groups": groups,
            "detection": _method_rows(studies, detection_rows),
            "group_means": [
                {"method": name, "score": score, "group": group, **means}
                for name, study in studies.items()
                for score, sets in study.detection.items()
                for group, means in group_means(sets, groups).items()
            ],
            "tuning": {
                name: {} if method.setup is None else method.setup.scorer.tuning
                for name, method in self.methods.items()
            },
            "temperatures": {
                name: None if method.setup is None else method.setup.scorer.temperature
                for name, method in self.methods.items()
            },
            "curves": _method_rows(studies, curve_rows),
            "histograms": _method_rows(studies, histogram_rows),
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
        from dissensus.runs.detect_tables import leading_table, record_tables

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

    def detector(self, score: str | None = None, method: str | None = None) -> Detector:
        """A detector by ``score``, fitted to the validation split; by default the first ones."""
        setup = self.methods[method or next(iter(self.methods))].setup
        if setup is None:
            raise ValueError("a detector needs a run, and this is a file of predictions")
        return setup.detector(score or setup.scorer.names[0])

    def _groups(self) -> dict[str, list[str]]:
        """The names of the near and far sets."""
        setup = next(iter(self.methods.values())).setup
        groups = {"near": self.options.near, "far": self.options.far}
        return {
            group: [
                Path(text).stem if setup is None else setup.unknown[text].name
                for text in dict.fromkeys(texts)
            ]
            for group, texts in groups.items()
            if texts
        }


def detect(
    runs: str | Path | Sequence[str | Path],
    options: Detect | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> Detections:
    """Measure how well a run's scores recognise unknown inputs; several runs are compared.

    ``settings`` are the fields of :class:`Detect`. Instead of a run, ``runs`` may name a file of
    predictions, and ``unknown`` such files, with ``keys={"outputs": "logits"}`` if theirs have
    another name. Thresholds come from the validation split, never from
    what is tested on.

    ::

        detections = ds.runs.detect("runs/ldr", unknown=["held_out", "corrupt:5"])
        detections.show()
        detections.to_frame().sort_values("auroc")
        detections.detector().is_ood(x)
    """
    options = collect(Detect, options, settings)
    if not options.sets:
        raise ValueError("name at least one set of unknown inputs with --ood, --near or --far")
    paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    names = _method_names(paths)
    methods = {}
    for path, name in zip(paths, names, strict=True):
        with ProgressBar(name, show=progress) as bar:
            if len(paths) > 1:
                bar.log(name)
            study = _detect_in_files if path.is_file() else _detect_in_run
            methods[name] = study(path, options, bar)
    return Detections(options, paths, methods)


def _detect_in_run(run: Path, options: Detect, bar: ProgressBar) -> MethodDetection:
    from dissensus.runs.scoring import set_up

    if options.keys or options.probs:
        flag = "--key" if options.keys else "--probs"
        raise ValueError(f"{flag} is for files of predictions, and {run} is not one")
    bar.update(note="loading" + (", tuning" if options.tune else ""))
    setup = set_up(run, options, progress=bar.show)
    study, accuracy = setup.measure(bar)
    return MethodDetection(study, accuracy, setup.divergent(study), setup, setup.strangers())


def _detect_in_files(known: Path, options: Detect, bar: ProgressBar) -> MethodDetection:
    """Scores of files of predictions, read in pieces; only those that outputs alone give."""
    from dissensus.detection import DEFAULT_SCORES, compare, is_fitted
    from dissensus.outputs import stored_space
    from dissensus.scores import score_file
    from dissensus.scores.functions import SCORES_OF_LOGITS

    names = options.score_names
    if options.tune:
        raise ValueError(f"--tune trains members, and {known} is a file of predictions")
    impossible = [n for n in names if is_fitted(n) or n.endswith(":temperature=fit")]
    if impossible:
        raise ValueError(f"{', '.join(impossible)} cannot be computed from predictions alone")
    space = "probs" if options.probs else stored_space(known)
    lost = () if space == "logits" else SCORES_OF_LOGITS
    names = names or [n for n in DEFAULT_SCORES if n not in lost and not is_fitted(n)]
    files = [known, *map(Path, options.sets)]
    if len({file.stem for file in files}) < len(files):
        raise ValueError("two files have the same name; rename one of them")
    keys, scores = array_keys(options.keys), {}
    for file in files:
        bar.update(note=f"scoring {file.name}")
        by_name = score_file(
            file,
            names,
            keys=keys,
            space="probs" if options.probs else None,
            progress=lambda row, rows: bar.update(row, total=rows),
        )
        scores[file.stem] = {score: values.double() for score, values in by_name.items()}
    study = compare(scores, known.stem, bootstrap=options.bootstrap, seed=options.seed)
    return MethodDetection(study)


def _method_names(runs: Sequence[Path]) -> list[str]:
    """The names of the folders, or whole paths where names are the same."""
    names = [run.resolve().name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(f"each RUN is one method, got the same one twice: {', '.join(names)}")
    return names


# ---- records ------------------------------------------------------------------------------------


def _method_rows(
    studies: Mapping[str, Study], rows: Callable[[Study], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    return [{"method": name, **row} for name, study in studies.items() for row in rows(study)]


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
