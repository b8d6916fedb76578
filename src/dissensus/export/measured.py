"""The sections of a model card that hold numbers, each from a record, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dissensus.detection import Estimate
from dissensus.export.findings import Findings

__all__ = ["adversarial_inputs", "diagnosis", "results", "unknown_inputs"]

#: Rows of the table of results: key, name, and how the number is written.
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

#: How many lines of the table on unknown inputs are shown.
_LINES = 40


def results(findings: Findings) -> list[str]:
    """Accuracy, calibration, ERR and DIV by split."""
    splits = {"test": "test", "val": "validation"}
    columns = {splits[key]: values for key, values in findings.figures.items() if key in splits}
    if not columns:
        return []
    lines = ["## Results", "", _row(["", *columns]), _row(["---"] + ["---:"] * len(columns))]
    for key, (name, form) in _RESULTS.items():
        if any(isinstance(values.get(key), int | float) for values in columns.values()):
            cells = [_written(values.get(key), form) for values in columns.values()]
            lines.append(_row([name, *cells]))
    notes = []
    counts = [
        f"{found['examples']} {name}" for name, found in columns.items() if "examples" in found
    ]
    if counts:
        notes.append(f"Examples: {', '.join(counts)}.")
    if any(isinstance(value, Estimate) for found in columns.values() for value in found.values()):
        notes.append("In brackets are 95% intervals over examples; other seeds are not in them.")
    if "validation" in columns:
        notes.append("The epoch was chosen on the validation split, so its figures flatter.")
    return [*lines, "", " ".join(notes)] if notes else lines


def _written(value: Any, form: str) -> str:
    if not isinstance(value, int | float):
        return ""
    bare = form.format(float(value))
    if not isinstance(value, Estimate) or value.low != value.low:
        return bare
    return f"{bare} [{form.format(value.low)}, {form.format(value.high)}]"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def diagnosis(found: Mapping[str, Any]) -> list[str]:
    """The verdict of ``diagnose`` in words."""
    if not found:
        return []
    sizes = " and ".join(f"{count} {split}" for split, count in found["examples"].items())
    return [
        "## Is its diversity real?",
        "",
        f"**{found['verdict']}**, judged on {sizes} examples. {' '.join(found['reasons'])}",
        "",
        str(found["advice"]),
    ]


def unknown_inputs(found: Mapping[str, Any], name: str) -> list[str]:
    """What ``dissensus ood`` measured; of several methods the one called ``name``."""
    rows = list(found.get("detection", ()))
    if len({row["method"] for row in rows}) > 1:
        rows = [row for row in rows if row["method"] == name]
    if not rows:
        return []
    known = ", ".join(sorted(set(found.get("id", {}).values())))
    lines = [
        "## Unknown inputs",
        "",
        f"How well scores tell inputs of other sets from known ones ({known}); OOD is positive, "
        "and *flagged* is the share above a threshold from the validation split.",
        "",
        _row(["set", "score", "AUROC", "FPR95", "flagged"]),
        _row(["---", "---", "---:", "---:", "---:"]),
    ]
    for row in rows[:_LINES]:
        measured = [_estimate(row, key) for key in ("auroc", "fpr95")]
        flagged = "" if row.get("flagged") is None else f"{row['flagged']:.1%}"
        lines.append(_row([str(row["set"]), str(row["score"]), *measured, flagged]))
    if len(rows) > _LINES:
        lines += ["", f"{len(rows) - _LINES} more lines are in the run's `ood.json`."]
    return lines


def _estimate(row: Mapping[str, Any], key: str) -> str:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    value = row[key] if low is None or high is None else Estimate(row[key], low, high)
    return _written(value, "{:.3f}")


def adversarial_inputs(found: Mapping[str, Any]) -> list[str]:
    """What ``dissensus attack`` measured, and what to doubt about it."""
    if not found:
        return []
    lines = [
        "## Adversarial inputs",
        "",
        f"White-box attacks on {found['evaluated_on']}, {found['examples']} examples.",
        "",
        _row(["attack", "accuracy"]),
        _row(["---", "---:"]),
        _row(["none", _accuracy(found["clean_accuracy"])]),
    ]
    for row in found["attacks"]:
        low, high = row["interval"]
        told = {"accuracy": row["accuracy"], "low": low, "high": high}
        source = f" (made on {row['source']})" if row.get("source") else ""
        lines.append(_row([f"`{row['attack']}`{source}", _accuracy(told)]))
    lines.append(_row(["**worst case for each example**", _accuracy(found["worst_case"])]))
    if found.get("flags"):
        lines += ["", "Do not trust these numbers yet:", ""]
        lines += [f"- {flag['name']}: {flag['text']}" for flag in found["flags"]]
    return lines


def _accuracy(found: Mapping[str, Any]) -> str:
    return _written(Estimate(found["accuracy"], found["low"], found["high"]), "{:.1%}")
