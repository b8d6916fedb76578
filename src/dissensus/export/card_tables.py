"""Tables of a model card: the sections that hold numbers, each from a record, as Markdown lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.export.markdown import code, prose, table_row
from dissensus.measures import Estimate

#: Rows of the table of results: key, name, and the format of the number.
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

#: The most lines of the table on unknown inputs.
_LINES = 40


def results(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Accuracy, calibration, ERR and DIV by split."""
    splits = {"test": "test", "val": "validation"}
    columns = {splits[key]: values for key, values in metrics.items() if key in splits}
    if not columns:
        return []
    lines = [
        "## Results",
        "",
        table_row(["", *columns]),
        table_row(["---"] + ["---:"] * len(columns)),
    ]
    for key, (name, form) in _RESULTS.items():
        if any(isinstance(values.get(key), int | float) for values in columns.values()):
            lines.append(table_row([name, *(_number(v.get(key), form) for v in columns.values())]))
    notes = []
    counts = [f"{prose(v['examples'])} {name}" for name, v in columns.items() if "examples" in v]
    if counts:
        notes.append(f"Examples: {', '.join(counts)}.")
    if any(isinstance(value, Estimate) for values in columns.values() for value in values.values()):
        notes.append("Brackets hold 95% intervals over examples; they do not cover other seeds.")
    if "validation" in columns:
        notes.append("The epoch was chosen on the validation split: its results are optimistic.")
    return [*lines, "", " ".join(notes)] if notes else lines


def diagnosis(record: Mapping[str, Any]) -> list[str]:
    """The verdict of ``diagnose`` in words."""
    if not record:
        return []
    sizes = " and ".join(
        f"{prose(count)} {prose(split)}" for split, count in record["examples"].items()
    )
    return [
        "## Is its diversity real?",
        "",
        f"**{prose(record['verdict'])}**, judged on {sizes} examples. "
        + " ".join(prose(reason) for reason in record["reasons"]),
        "",
        prose(record["advice"]),
    ]


def unknown_inputs(record: Mapping[str, Any], name: str) -> list[str]:
    """The measures of ``dissensus ood``; of several methods those of the one called ``name``."""
    rows = list(record.get("detection", ()))
    if len({row["method"] for row in rows}) > 1:
        rows = [row for row in rows if row["method"] == name]
    if not rows:
        return []
    known = prose(", ".join(sorted(set(record.get("id", {}).values()))))
    lines = [
        "## Unknown inputs",
        "",
        f"How well each score separates inputs of other sets from known ones ({known}). OOD is the "
        "positive class; *flagged* is the share above a threshold set on the validation split.",
        "",
        table_row(["set", "score", "AUROC", "FPR95", "flagged"]),
        table_row(["---", "---", "---:", "---:", "---:"]),
    ]
    for row in rows[:_LINES]:
        flagged = "" if row.get("flagged") is None else f"{row['flagged']:.1%}"
        measures = [_measure(row, "auroc"), _measure(row, "fpr95"), flagged]
        lines.append(table_row([prose(row["set"]), prose(row["score"]), *measures]))
    if len(rows) > _LINES:
        lines += ["", f"{len(rows) - _LINES} more lines are in the run's `ood.json`."]
    return lines


def adversarial_inputs(record: Mapping[str, Any]) -> list[str]:
    """The accuracies of ``dissensus attack``, and reasons to doubt them."""
    if not record:
        return []
    lines = [
        "## Adversarial inputs",
        "",
        f"White-box attacks on {prose(record['evaluated_on'])}, {record['examples']} examples.",
        "",
        table_row(["attack", "accuracy"]),
        table_row(["---", "---:"]),
        table_row(["none", _accuracy(**record["clean_accuracy"])]),
    ]
    for row in record["attacks"]:
        source = f" (made on {prose(row['source'])})" if row.get("source") else ""
        accuracy = _accuracy(row["accuracy"], *row["interval"])
        lines.append(table_row([f"{code(row['attack'])}{source}", accuracy]))
    lines.append(table_row(["**worst case for each example**", _accuracy(**record["worst_case"])]))
    if record.get("flags"):
        lines += ["", "Do not trust these numbers yet:", ""]
        lines += [f"- {prose(flag['name'])}: {prose(flag['text'])}" for flag in record["flags"]]
    return lines


def _measure(row: Mapping[str, Any], key: str) -> str:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    value = row[key] if low is None or high is None else Estimate(row[key], low, high)
    return _number(value, "{:.3f}")


def _accuracy(accuracy: float, low: float, high: float, **_: Any) -> str:
    return _number(Estimate(accuracy, low, high), "{:.1%}")


def _number(value: Any, form: str) -> str:
    """A number, with its interval if it has one; nothing for what is no number."""
    if not isinstance(value, int | float):
        return ""
    bare = form.format(float(value))
    if not isinstance(value, Estimate) or value.low != value.low:
        return bare
    return f"{bare} [{form.format(value.low)}, {form.format(value.high)}]"
