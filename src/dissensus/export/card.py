"""Model cards: what a stranger should know before using an ensemble, from records alone.

A number is in the card if a record has it, and a section if it has content. The limits name what
was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dissensus.detection import Detector
from dissensus.export.card_tables import adversarial_inputs, diagnosis, results, unknown_inputs
from dissensus.export.markdown import code, prose, table_row
from dissensus.export.module import backbone_name
from dissensus.export.results import RunResults
from dissensus.models import MODELS
from dissensus.runs.data_summary import DataSummary

Config = Mapping[str, Any]

#: Metrics that the front matter names.
_METRICS = ("accuracy", "nll", "brier", "rmse")

#: Settings of training that the card lists.
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

_COMBINE = {
    "probability": "the mean of its members' probabilities",
    "score": "the softmax of its members' mean logits",
    "mean": "the mean of its members' predictions",
}


def model_card(
    config: Config,
    summary: DataSummary | None,
    run_results: RunResults,
    *,
    detector: Detector | None = None,
    license: str | None = None,
) -> str:
    """``README.md``: YAML front matter for a hub, then the card for people."""
    sections = [
        _front_matter(config, summary, run_results, license),
        _title(config, summary),
        _use(config, summary, detector),
        _data(summary),
        _training(config, run_results.training),
        results(run_results.metrics),
        diagnosis(run_results.diagnosis),
        unknown_inputs(run_results.ood, str(config["name"])),
        adversarial_inputs(run_results.attacks),
        _limits(config, summary, run_results, license),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _front_matter(
    config: Config, summary: DataSummary | None, run_results: RunResults, license: str | None
) -> list[str]:
    """YAML; strings are written as JSON, which is YAML too."""
    metrics = run_results.metrics.get("test", {})
    measured = [key for key in _METRICS if isinstance(metrics.get(key), int | float)]
    task = _pipeline(config["task"], summary)
    chosen = f"license: {json.dumps(license)}"
    lines = ["---", "library_name: dissensus"]
    lines.append("# license: not chosen yet; name one here" if license is None else chosen)
    if task is not None:
        lines.append(f"pipeline_tag: {task}")
    tags = ["dissensus", "deep-ensemble", "uncertainty", config["task"]]
    tags += ["out-of-distribution-detection"] if run_results.ood else []
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    if measured:
        lines += ["metrics:", *(f"- {key}" for key in measured)]
    if measured and summary is not None and task is not None:
        lines += [
            "model-index:",
            f"- name: {json.dumps(config['name'] or 'ensemble')}",
            "  results:",
            "  - task:",
            f"      type: {task}",
            "    dataset:",
            f"      name: {json.dumps(summary.name)}",
            f"      type: {json.dumps(summary.name)}",
            "      split: test",
            "    metrics:",
        ]
        for key in measured:
            lines += [f"    - type: {key}", f"      value: {float(metrics[key])!r}"]
    return [*lines, "---"]


def _pipeline(task: str, summary: DataSummary | None) -> str | None:
    """The task as hubs call it; None where they have no name for it."""
    dimensions = 0 if summary is None else len(summary.input_shape)
    if dimensions == 3 and task == "classification":
        return "image-classification"
    return f"tabular-{task}" if dimensions == 1 else None


def _title(config: Config, summary: DataSummary | None) -> list[str]:
    members = config["ensemble"]["members"]
    networks = ", ".join(code(name) for name in dict.fromkeys(_model_names(config)))
    of = f" of {networks}" if networks else ""
    on = f" on {prose(summary.name)}" if summary is not None and summary.name else ""
    objective = config.get("training", {}).get("objective")
    trained = f", trained with the objective {code(objective)}" if objective else ""
    count = "1 member" if members == 1 else f"{members} members"
    return [
        f"# {prose(config['name'] or 'An ensemble')}",
        "",
        f"A deep ensemble of {count}{of} for {config['task']}{on}{trained}. Its prediction is "
        f"{_COMBINE[config['ensemble']['combine']]}. Made with Dissensus "
        f"{config['versions']['dissensus']}.",
    ]


def _model_names(config: Config) -> list[str]:
    model = config["model"]
    models = [] if model is None else model if isinstance(model, list) else [model]
    return [str(each["name"]) for each in models]


def _use(config: Config, summary: DataSummary | None, detector: Detector | None) -> list[str]:
    names = _model_names(config)
    foreign = [name for name in names if name not in MODELS]
    argument = ", trust=True" if foreign else "" if names else ", make_member=make_member"
    shape = "…" if summary is None else ", ".join(str(size) for size in summary.input_shape)
    regression = config["task"] == "regression"
    prediction = "the mean, [batch, outputs]" if regression else "probabilities, [batch, classes]"
    lines = [
        "import dissensus as ds",
        "",
        f'ens = ds.load("path/to/this/folder"{argument})',
        f"ens.predict(x)    # x: [batch, {shape}]; {prediction}",
        "ens(x)            # every member, [members, batch, outputs]",
    ]
    notes = []
    if foreign:
        notes.append(f"{code(foreign[0])} is code: read it before you run it with `trust=True`.")
    if not names:
        notes.append("`make_member` is the function that makes one member; it is not included.")
    if summary is not None and {"encoder", "feature_mean"} & summary.preprocessing.keys():
        notes.append(
            "`x` is filled, encoded and standardised as `config.json` says. `dissensus predict "
            "FOLDER --input new.csv --output predictions.csv` does that to rows in their own units."
        )
    if detector is not None:
        file = "path/to/this/folder/detector.json"
        lines.append(f'ds.Detector.load("{file}", ens).is_ood(x)    # [batch]')
        note = (
            f"`detector.json` flags inputs whose score {code(detector.score_name)} is above "
            f"{detector.threshold:.6g}, which accepts {detector.accept:.0%} of {detector.count} "
            "validation examples."
        )
        if detector.tuning:
            note += (
                " The score is that of a copy of the members, tuned to disagree on inputs made "
                "from the training data; predictions are those of the members themselves."
            )
        notes.append(note)
    section = ["## How to load it", "", "```python", *lines, "```"]
    return section + [line for note in notes for line in ("", note)]


def _data(summary: DataSummary | None) -> list[str]:
    if summary is None:
        return []
    counts = ", ".join(f"{count} {prose(part)}" for part, count in summary.rows.items() if count)
    rows = f"; rows: {counts}" if counts else ""
    lines = ["## Data", "", f"- {prose(summary.name)}: {prose(summary.task)}{rows}"]
    lines.append(f"- one input: {tuple(summary.input_shape)}; outputs: {summary.outputs}")
    if summary.classes:
        lines.append(f"- classes: {_first(summary.classes)}")
    if summary.features:
        lines.append(f"- columns: {_first(summary.features)}")
    backbone = backbone_name(summary)
    if backbone is not None:
        lines.append(
            f"- inputs are features of the backbone {code(backbone)}, which is not included"
        )
    steps = [prose(note) for note in summary.preprocessing.get("notes", ())]
    if summary.prepared:
        steps += [prose(summary.prepared), "statistics of the training rows"]
    if summary.channels:
        steps.append("channels normalised inside the members")
    return lines + ([f"- preprocessing: {'; '.join(steps)}"] if steps else [])


def _first(names: Sequence[str], limit: int = 20) -> str:
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(prose(name) for name in names[:limit]) + more


def _training(config: Config, training: Mapping[str, Any]) -> list[str]:
    settings = {key: config.get("training", {}).get(key) for key in _TRAINING}
    settings |= {key: config.get("data", {}).get(key) for key in ("augment", "adversarial")}
    given = {key: value for key, value in settings.items() if value is not None}
    rows = [table_row([key, code(value)]) for key, value in given.items()]
    if not rows and not training:
        return []
    lines = ["## Training"]
    if rows:
        lines += ["", "| setting | |", "|---|---|", *rows]
    if training:
        torch = training.get("environment", {}).get("packages", {}).get("torch")
        seconds = training.get("seconds")
        text = f"{training['epochs']} epochs; these weights are of epoch {training['best_epoch']}"
        text += f"; {seconds:.0f} s" if isinstance(seconds, int | float) else ""
        text += f"; torch {prose(torch)}" if torch else ""
        lines += ["", f"{text}."]
    return lines


def _limits(
    config: Config, summary: DataSummary | None, run_results: RunResults, license: str | None
) -> list[str]:
    limits = []
    if run_results.metrics:
        of = f" of {prose(summary.name)}" if summary is not None else ""
        limits.append(f"The results are of one run on one split{of}; other data may differ.")
    else:
        limits.append("How well it predicts is unknown: no results were recorded.")
    if not run_results.diagnosis:
        limits.append("Its members were not checked for collusion (`dissensus diagnose`).")
    if config["task"] == "classification":
        limits.append(
            "A score says that an input is unusual to the members; some unusual inputs score low."
            if run_results.ood
            else "Detection of unknown inputs was not measured (`dissensus ood`)."
        )
        limits.append(
            "Other attacks may lower its accuracy further."
            if run_results.attacks
            else "Robustness to adversarial inputs was not measured (`dissensus attack`)."
        )
    else:
        limits.append("The spread of its members is not calibrated: it is no predictive interval.")
    if license is None:
        limits.append("No license was chosen; until its owner names one, it is not free to use.")
    return ["## Limits", "", *(f"- {limit}" for limit in limits)]
