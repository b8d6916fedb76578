"""Model cards: the facts of an ensemble and its records, for the template ``card.md``.

A number is in the card if a record has it, and a section if it has content. The limits name what
was not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dissensus.detection import Detector
from dissensus.export.module import backbone_name
from dissensus.export.results import RunResults
from dissensus.models import MODELS
from dissensus.runs.data import DataSummary
from dissensus.tools.console import printable

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
        unknown_rows=list(_unknown_rows(results.ood, str(config["name"]))),
        attack_rows=list(_attack_rows(results.attacks)),
        limits=_limits(config["task"], results, license),
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


def _limits(task: str, results: RunResults, license: str | None) -> list[str]:
    limits = ["The results are of one run on one split; other data may differ."]
    if not results.metrics:
        limits = ["How well it predicts is unknown: no results were recorded."]
    if not results.diagnosis:
        limits.append("Its members were not checked for collusion (`dissensus diagnose`).")
    if task == "regression":
        limits.append("The spread of its members is not calibrated: it is no predictive interval.")
    elif not results.ood:
        limits.append("Detection of unknown inputs was not measured (`dissensus ood`).")
    if task != "regression" and not results.attacks:
        limits.append("Robustness to adversarial inputs was not measured (`dissensus attack`).")
    if license is None:
        limits.append("No license was chosen; until its owner names one, it is not free to use.")
    return limits


# ---- tables -------------------------------------------------------------------------------------


def _metric_rows(metrics: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    """Accuracy, calibration, ERR and DIV by split."""
    for key, (name, form) in _RESULTS.items():
        values = [split.get(key) for split in metrics.values()]
        if any(isinstance(value, int | float) for value in values):
            yield [name, *("" if value is None else form.format(value) for value in values)]


def _unknown_rows(record: Mapping[str, Any], name: str) -> Iterable[list[str]]:
    """The measures of ``dissensus ood``; of several methods those of the one called ``name``."""
    rows = list(record.get("detection", ()))
    if len({row["method"] for row in rows}) > 1:
        rows = [row for row in rows if row["method"] == name]
    for row in rows:
        measures = [
            _number(row[key], row.get(f"{key}_low"), row.get(f"{key}_high"), "{:.3f}")
            for key in ("auroc", "fpr95")
        ]
        flagged = "" if row.get("flagged") is None else f"{row['flagged']:.1%}"
        yield [text(row["set"]), text(row["score"]), *measures, flagged]


def _attack_rows(record: Mapping[str, Any]) -> Iterable[list[str]]:
    """The accuracies of ``dissensus attack``."""
    if not record:
        return
    yield ["none", _number(**record["clean_accuracy"])]
    for row in record["attacks"]:
        source = f" (made on {text(row['source'])})" if row.get("source") else ""
        low, high = row["interval"]
        yield [code(row["attack"]) + source, _number(row["accuracy"], low, high)]
    yield ["**worst case for each example**", _number(**record["worst_case"])]


def _number(
    accuracy: float, low: float | None, high: float | None, form: str = "{:.1%}", **_: Any
) -> str:
    """A measure with its interval, if it has one."""
    bare = form.format(accuracy)
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
