"""Model cards: the facts of an ensemble and its records, for the template ``card.md``.

A number is in the card if a record has it, and a section if it has content; the template also names
what was not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dissensus.detection import Detector
from dissensus.export.module import backbone_name
from dissensus.models import MODELS
from dissensus.runs.data import DataSummary
from dissensus.runs.folder import RESULTS, describe, read_result
from dissensus.tools.console import printable
from dissensus.tools.files import check_types
from dissensus.tools.records import RECORD, read_record

#: Settings of training that the card lists.
_TRAINING = (
    *("objective", "epochs", "batch_size", "optimizer", "schedule", "patience", "select_by"),
    *("label_smoothing", "seed"),
)

#: Rows of the table of results, by the keys of the metrics: name, and format of the number.
_RESULTS = {
    "accuracy": ("accuracy", "{:.2%}"),
    "nll": ("negative log-likelihood", "{:.4f}"),
    "brier": ("Brier score", "{:.4f}"),
    "ece_width": ("calibration error (ECE, 15 bins of equal width)", "{:.4f}"),
    "rmse": ("RMSE, in the units of the target", "{:.4g}"),
    "ensemble_error": ("ERR, the ensemble's error", "{:.4f}"),
    "member_error": ("mean ERR, the mean of its members' errors", "{:.4f}"),
    "diversity": ("DIV = mean ERR − ERR", "{:.4f}"),
}

#: What Markdown or HTML would take for markup; an underscore inside of a word is none.
_MARKUP = re.compile(r"[\\`*\[\]~!$|]|(?<!\w)_|_(?!\w)|^(?=[#+-])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


_ACCURACY = {"accuracy": float, "low": float, "high": float}

#: What the card takes from the records of commands.
_SCHEMAS: dict[str, dict[str, Any]] = {
    "ood": {
        "detection": [{"method": str, "set": str, "score": str, "auroc": float, "fpr95": float}]
    },
    "attack": {
        "evaluated_on": str,
        "examples": int,
        "clean_accuracy": _ACCURACY,
        "worst_case": _ACCURACY,
        "attacks": [{"attack": str, "accuracy": float, "interval": [float]}],
    },
}


@dataclass(frozen=True)
class RunResults:
    """Metrics of a run by split, and records of ``diagnose``, ``ood`` and ``attack``.

    What was not measured is empty. ``notes`` say what was left out and why.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    ood: Mapping[str, Any] = field(default_factory=dict)
    attacks: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_results(run: str | Path, diagnosis: Mapping[str, Any] | None = None) -> RunResults:
    """What the files of a run hold; ``diagnosis`` is ``diagnose(…).to_dict()`` of these weights."""
    found, records, notes = describe(run), {}, []
    for command, schema in _SCHEMAS.items():
        name = RESULTS[command][0]
        try:
            records[command] = read_result(run, command)
            if records[command]:
                check_types(records[command], schema, "it")
        except ValueError as error:
            records[command] = {}
            notes.append(f"{name} is left out: {error}")
    record = read_record(Path(run) / RECORD) if found.test else {}  # else it is of other weights
    metrics = {"test": found.test, "validation": record.get("val") or found.val}
    return RunResults(
        {"epochs": found.epochs, "best_epoch": found.best_epoch},
        {split: values for split, values in metrics.items() if values},
        diagnosis or {},
        records["ood"],
        records["attack"],
        tuple(notes),
    )


def model_card(
    config: Mapping[str, Any],
    summary: DataSummary | None,
    results: RunResults,
    *,
    detector: Detector | None = None,
    license: str | None = None,
) -> str:
    """``README.md``: YAML front matter for a hub, then the card for people."""
    if find_spec("huggingface_hub") is None or find_spec("jinja2") is None:
        raise ValueError("a model card needs huggingface_hub: pip install 'dissensus[hub]'")
    from huggingface_hub import ModelCard

    model = config["model"]
    networks = [each["name"] for each in (model if isinstance(model, list) else [model]) if each]
    foreign = [name for name in networks if name not in MODELS]
    facts = {} if summary is None else summary.preprocessing
    regression = config["task"] == "regression"
    settings = {key: config.get("training", {}).get(key) for key in _TRAINING}
    settings |= {key: config.get("data", {}).get(key) for key in ("augment", "adversarial")}
    steps = [*facts.get("notes", ()), *([summary.prepared] if summary else [])]
    judged = results.diagnosis.get("examples", {}).items()
    card = ModelCard.from_template(
        _card_data(config, summary, results, license),
        template_str=Path(__file__).with_name("card.md").read_text(encoding="utf-8"),
        text=text,
        code=code,
        number=_number,
        first=_first,
        config=config,
        summary=summary,
        results=results,
        detector=detector,
        networks=", ".join(code(name) for name in dict.fromkeys(networks)),
        foreign=foreign,
        rows=", ".join(f"{n} {text(part)}" for part, n in summary.rows.items()) if summary else "",
        argument=", trust=True" if foreign else "" if networks else ", make_member=make_member",
        shape="…" if summary is None else ", ".join(map(str, summary.input_shape)),
        prediction=f"{'means' if regression else 'probabilities'}, [batch, outputs]",
        tabular=bool({"encoder", "feature_mean"} & facts.keys()),
        backbone=backbone_name(summary),
        steps="; ".join(text(step) for step in steps if step),
        settings={key: value for key, value in settings.items() if value is not None},
        judged=" and ".join(f"{count} {text(split)}" for split, count in judged),
        metric_rows=list(_metric_rows(results.metrics)),
        unknown=_own_rows(results.ood, str(config["name"])),
        license=license,
        regression=regression,
    )
    return str(card) + "\n"


def _card_data(
    config: Mapping[str, Any], summary: DataSummary | None, results: RunResults, license: str | None
) -> Any:
    """What a hub reads: license, tags, the task as hubs call it, and the results on test data."""
    from huggingface_hub import EvalResult, ModelCardData

    dimensions = 0 if summary is None else len(summary.input_shape)
    task = f"tabular-{config['task']}" if dimensions == 1 else None
    if dimensions == 3 and config["task"] == "classification":
        task = "image-classification"
    metrics = results.metrics.get("test", {})
    measured = [key for key in ("accuracy", "nll", "brier", "rmse") if key in metrics]
    found = []
    if summary is not None and task is not None:
        about: dict[str, Any] = {"task_type": task, "dataset_split": "test"}
        about |= dict.fromkeys(("dataset_type", "dataset_name"), printable(summary.name))
        for key in measured:
            value = float(metrics[key])
            found.append(EvalResult(**about, metric_type=key, metric_value=value))
    tags = ["dissensus", "deep-ensemble", "uncertainty", config["task"]]
    return ModelCardData(
        license=license and printable(license),
        library_name="dissensus",
        tags=tags + (["out-of-distribution-detection"] if results.ood else []),
        pipeline_tag=task,
        metrics=measured or None,
        model_name=printable(config["name"]) or "ensemble",
        eval_results=found or None,
    )


# ---- tables -------------------------------------------------------------------------------------


def _metric_rows(metrics: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    """Accuracy, calibration, ERR and DIV by split."""
    for key, (name, form) in _RESULTS.items():
        values = [split.get(key) for split in metrics.values()]
        if any(isinstance(value, int | float) for value in values):
            yield [name, *("" if value is None else form.format(value) for value in values)]


def _own_rows(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The rows of ``dissensus ood``; of several methods those of the one called ``name``."""
    rows = list(record.get("detection", ()))
    several = len({row["method"] for row in rows}) > 1
    return [row for row in rows if row["method"] == name] if several else rows


def _number(
    value: float, low: float | None = None, high: float | None = None, form: str = "{:.1%}"
) -> str:
    """A measure with its interval, if it has one."""
    bare = form.format(value)
    if low is None or high is None:
        return bare
    return f"{bare} [{form.format(low)}, {form.format(high)}]"


def _first(names: Sequence[str], limit: int = 20) -> str:
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(text(name) for name in names[:limit]) + more


# ---- text from files that stays text, whatever it holds ------------------------------------------


def text(value: object) -> str:
    r"""``value`` on one line, to be read as it is.

    >>> print(text("a_b <img src=x> [b](http://c)\n# d"))
    a_b &lt;img src=x&gt; \[b\](http://c) # d
    """
    line = _MARKUP.sub(r"\\\g<0>", printable(" ".join(str(value).split())))
    return re.sub("[&<>]", lambda match: _HTML[match[0]], line)


def code(value: object) -> str:
    """``value`` on one line of a table, as code.

    >>> print(code("mlp"), code("a`b"))
    `mlp` `` a`b ``
    """
    line = printable(" ".join(str(value).split())).replace("|", r"\|")
    runs = [len(run) for run in re.findall("`+", line)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {line} {fence}" if runs else f"{fence}{line}{fence}"
