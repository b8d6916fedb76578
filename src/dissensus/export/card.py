"""The model card: what a stranger should know before using the ensemble, from records alone.

A number is in the card if a record has it, and a section if it has something to say; what was not
measured is said to be so under the limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dissensus.detection import Detector
from dissensus.export.findings import Findings
from dissensus.export.measured import adversarial_inputs, diagnosis, results, unknown_inputs
from dissensus.export.metadata import backbone_of
from dissensus.models import MODELS
from dissensus.runs.facts import Facts

__all__ = ["model_card"]

#: What the front matter names as metrics.
_METRICS = ("accuracy", "nll", "brier", "rmse")

_TRAINING = (
    "objective",
    "epochs",
    "batch_size",
    "optimizer",
    "schedule",
    "patience",
    "select_by",
    "label_smoothing",
    "seed",
)


def model_card(
    config: Mapping[str, Any],
    facts: Facts | None,
    findings: Findings,
    *,
    detector: Detector | None = None,
    license: str | None = None,
) -> str:
    """``README.md``: YAML front matter for a hub, then the card for people."""
    sections = [
        _front_matter(config, facts, findings, license),
        _title(config, facts),
        _use(config, facts, detector),
        _data(facts),
        _training(config, findings),
        results(findings),
        diagnosis(findings.diagnosis),
        unknown_inputs(findings.ood, str(config["name"])),
        adversarial_inputs(findings.attacks),
        _limits(config, facts, findings, license),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


# ---- for a hub ----------------------------------------------------------------------------------


def _front_matter(
    config: Mapping[str, Any], facts: Facts | None, findings: Findings, license: str | None
) -> list[str]:
    """YAML; strings are written as JSON, which is YAML too."""
    figures = findings.figures.get("test", {})
    measured = [key for key in _METRICS if isinstance(figures.get(key), int | float)]
    task = _pipeline(config["task"], facts)
    lines = ["---", "library_name: dissensus"]
    lines += ["# license: not chosen yet; name one here"] if license is None else []
    lines += [] if license is None else [f"license: {json.dumps(license)}"]
    lines += [] if task is None else [f"pipeline_tag: {task}"]
    tags = ["dissensus", "deep-ensemble", "uncertainty", config["task"]]
    tags += ["out-of-distribution-detection"] if findings.ood else []
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    if measured:
        lines += ["metrics:", *(f"- {key}" for key in measured)]
    if measured and facts is not None and task is not None:
        lines += [
            "model-index:",
            f"- name: {json.dumps(config['name'] or 'ensemble')}",
            "  results:",
            "  - task:",
            f"      type: {task}",
            "    dataset:",
            f"      name: {json.dumps(facts.name)}",
            f"      type: {json.dumps(facts.name)}",
            "      split: test",
            "    metrics:",
        ]
        for key in measured:
            lines += [f"    - type: {key}", f"      value: {float(figures[key])!r}"]
    return [*lines, "---"]


def _pipeline(task: str, facts: Facts | None) -> str | None:
    if facts is None:
        return None
    images = len(facts.input_shape) == 3
    if images:
        return "image-classification" if task == "classification" else None
    return f"tabular-{task}" if len(facts.input_shape) == 1 else None


# ---- what it is ---------------------------------------------------------------------------------


def _title(config: Mapping[str, Any], facts: Facts | None) -> list[str]:
    members = config["ensemble"]["members"]
    networks = ", ".join(f"`{name}`" for name in dict.fromkeys(_model_names(config)))
    of = f" of {networks}" if networks else ""
    on = f" on {facts.name}" if facts is not None and facts.name else ""
    objective = config.get("training", {}).get("objective")
    how = f", trained with the objective `{objective}`" if objective else ""
    return [
        f"# {config['name'] or 'An ensemble'}",
        "",
        f"A deep ensemble of {members} {'member' if members == 1 else 'members'}{of} for "
        f"{config['task']}{on}{how}. Members are combined by "
        f"{_combination(config['ensemble']['combine'])}. Made with Dissensus "
        f"{config['versions']['dissensus']}.",
    ]


def _combination(how: str) -> str:
    return {
        "probability": "the mean of their probabilities",
        "score": "the softmax of their mean logits",
        "mean": "the mean of their predictions",
    }[how]


def _model_names(config: Mapping[str, Any]) -> list[str]:
    model = config["model"]
    models = [] if model is None else model if isinstance(model, list) else [model]
    return [str(one["name"]) for one in models]


def _use(config: Mapping[str, Any], facts: Facts | None, detector: Detector | None) -> list[str]:
    names = _model_names(config)
    foreign = [name for name in names if name not in MODELS]
    argument = ", trust=True" if foreign else "" if names else ", make_member=make_member"
    shape = "…" if facts is None else ", ".join(str(size) for size in facts.input_shape)
    regression = config["task"] == "regression"
    result = "the mean, [batch, outputs]" if regression else "probabilities, [batch, classes]"
    lines = ["## How to load it", "", "```python", "import dissensus as ds", ""]
    lines += [
        f'ens = ds.load("path/to/this/folder"{argument})',
        f"ens.predict(x)    # x: [batch, {shape}]; {result}",
        "ens(x)            # every member, [members, batch, outputs]",
    ]
    if detector is not None:
        lines.append(
            'ds.Detector.load("path/to/this/folder/detector.json", ens).is_ood(x)    # [batch]'
        )
    lines += ["```"]
    if foreign:
        lines += [
            "",
            f"`{foreign[0]}` is code: read it before you pass `trust=True`, which runs it.",
        ]
    if not names:
        lines += [
            "",
            "`make_member` is the function that makes one member; it is not in this folder.",
        ]
    if facts is not None and "feature_mean" in facts.preprocessing:
        lines += [
            "",
            "`x` is standardised by the statistics in `config.json`. `dissensus predict FOLDER "
            "--input new.csv --output predictions.csv` takes rows in their own units and does it.",
        ]
    if detector is not None:
        lines += [
            "",
            f"`detector.json` flags inputs whose score `{detector.score_name}` is above "
            f"{detector.threshold:.6g}, which accepts {detector.tpr:.0%} of {detector.count} "
            "validation examples.",
        ]
    return lines


def _data(facts: Facts | None) -> list[str]:
    if facts is None:
        return []
    rows = ", ".join(f"{count} {part}" for part, count in facts.rows.items() if count)
    lines = ["## Data", "", f"- {facts.name}: {facts.task}" + (f"; rows: {rows}" if rows else "")]
    lines.append(f"- one input: {tuple(facts.input_shape)}; outputs: {facts.outputs}")
    if facts.classes:
        lines.append(f"- classes: {_some(facts.classes)}")
    if facts.features:
        lines.append(f"- columns: {_some(facts.features)}")
    backbone = backbone_of(facts)
    if backbone is not None:
        lines.append(f"- inputs are features of the backbone `{backbone}`, which is not included")
    notes = [str(note) for note in facts.preprocessing.get("notes", ())]
    if "feature_mean" in facts.preprocessing:
        notes.append("columns standardised by the training rows")
    if facts.channels:
        notes.append("channels normalised inside the members")
    return lines + ([f"- preparation: {'; '.join(notes)}"] if notes else [])


def _some(names: Sequence[str], limit: int = 20) -> str:
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(str(name) for name in names[:limit]) + more


def _training(config: Mapping[str, Any], findings: Findings) -> list[str]:
    asked: Mapping[str, Any] = config.get("training", {})
    told = findings.training
    lines = [f"| {key} | `{asked[key]}` |" for key in _TRAINING if asked.get(key) is not None]
    for key in ("augment", "adversarial"):
        value = config.get("data", {}).get(key)
        lines += [] if value is None else [f"| {key} | `{value}` |"]
    if not lines and not told:
        return []
    lines = ["## Training", "", "| setting | |", "|---|---|", *lines] if lines else ["## Training"]
    if told:
        environment = told.get("environment", {})
        torch = environment.get("packages", {}).get("torch")
        seconds = told.get("seconds")
        said = f"{told['epochs']} epochs; these weights are of epoch {told['best_epoch']}"
        said += f"; {seconds:.0f} s" if isinstance(seconds, int | float) else ""
        said += f"; torch {torch}" if torch else ""
        lines += ["", f"{said}."]
    return lines


# ---- what is not known --------------------------------------------------------------------------


def _limits(
    config: Mapping[str, Any], facts: Facts | None, findings: Findings, license: str | None
) -> list[str]:
    lines = ["## Limits", ""]
    if findings.figures:
        on = f" of {facts.name}" if facts is not None else ""
        lines.append(
            f"- The results are of one run on one split{on}; on other data they may differ."
        )
    else:
        lines.append(
            "- Nothing is known here about how well it predicts: no results were recorded."
        )
    if not findings.diagnosis:
        lines.append("- Whether its members collude was not looked at (`dissensus diagnose`).")
    if config["task"] == "classification":
        lines.append(
            "- Scores say that an input is unusual for the members, not that it is; they miss some."
            if findings.ood
            else "- What it does with unknown inputs was not measured (`dissensus ood`)."
        )
        lines.append(
            "- Other attacks than those above may leave less of its accuracy."
            if findings.attacks
            else "- What adversaries leave of it was not measured (`dissensus attack`)."
        )
    if config["task"] == "regression":
        lines.append("- The spread of its members is no predictive interval: it is not calibrated.")
    if license is None:
        lines.append("- No license is chosen; until its owner names one, it is not free to use.")
    return lines
