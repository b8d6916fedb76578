"""``docs/reliability.md``, built from the record of the counted suite."""

# ruff: noqa: E501

from pathlib import Path
from typing import Any

from tests.hardening import record

FILE = Path(__file__).parents[2] / "docs" / "reliability.md"

#: What a try of each category is, and what would be a failure.
MEANING = {
    "API calls": (
        "a public function with about one argument of another type, shape, device or size",
        "a raw error of torch or Python, a NaN or an infinity in the result, a hang",
    ),
    "estimator calls": (
        "`fit`, `predict`, `predict_std`, `ood_score` … with bad tables, targets or parameters",
        "the same",
    ),
    "command lines": (
        "a command on a spoilt run folder or a hostile file",
        "a traceback, no sentence, another exit status than 0 or 2, a hang",
    ),
    "hostile files": (
        "a file made by hand or damaged, through every reader of its kind",
        "another error than a sentence that names the file, a hang, more memory than allowed",
    ),
    "damaged files": (
        "one flipped bit in a checkpoint, predictions, weights, features or a detector",
        "other values are loaded without an error",
    ),
    "pairs of writers": (
        "two processes that train, resume, sweep, extract or report into one folder at once",
        "both write, a traceback, epochs twice or missing, files left over",
    ),
    "full disks": (
        "a disk that fills somewhere in a run, then has room again",
        "a traceback, silence, or other bytes after the resume",
    ),
    "kills of train": (
        "`dissensus train --resume`, killed at a random moment",
        "an epoch lost beyond the running one, a folder that cannot be read, other bytes at the end",
    ),
    "kills of sweep": ("`dissensus sweep`, the same", "the same, for cells"),
    "kills of features": ("`features.extract`, the same", "the same, for shards"),
    "kills of torchrun": (
        "two ranks with torchrun's environment; one or both killed",
        "the same as for train, or a rank that does not end",
    ),
}

BEFORE = """# Reliability

What is promised is in [SECURITY.md](../SECURITY.md). This page says how it is tested, and what came out. `make fuzz` runs
the counted suite in `tests/hardening`, with fixed seeds, and writes this page; `make test` runs a short part of it.

| what | a try | a failure would be | tries | failures |
|---|---|---|---:|---:|
"""

AFTER = """
Kills are `SIGKILL` of a process that was forked from one that had imported everything, at a moment drawn uniformly over the
length of a run; the ranks are started as torchrun would start them, but without its agent. What is resumed to its end is
compared with a run that nobody killed: the bytes of metrics, configuration, predictions and features, every tensor of the
checkpoint, every result of a sweep. Files that hold the time (`record.json`, `state.json`) are not compared.

Formulas that training evaluates at every step (`losses.mse`, `losses.errors`, `outputs.weighted_mean`, `diversity.entropy` and
the like) answer wrong types and shapes with a sentence, and look at no values: NaN in, NaN out. Everything else refuses both.
`ds.fit` gets inputs of the type and width that its network takes: errors of a network's own layers are torch's.

A category can be run by itself, and keeps its row until it is run again: the rows need not be of one run.

## What others promise

As their documentation and sources have it (safetensors 0.8, Lightning 2.6, scikit-learn 1.9, torch 2.13); only the flipped bit
in a file of `torch.save` was tried. They were not put through this suite.

| | safetensors | Lightning | scikit-learn | Dissensus |
|---|---|---|---|---|
| a file runs no code | yes, by its format | checkpoints are pickles; `weights_only=True` is advised for those of others | pickles run code; ONNX and skops are named as safer | yes, except pt2 files and `--trust` |
| a flipped bit is noticed | no checksum; the header is checked | not in weights: `torch.load` ignores the checksums that `torch.save` writes | no checksum of its own | in tensors, headers, features, detectors |
| interrupted training goes on | not its matter | from the last checkpoint; within an epoch it warns, unless the loader can restore its place | with `warm_start` or `partial_fit`, which some estimators have | to the same bits |
| two writers | not its matter | not mentioned | not mentioned | the second is refused |
| bad values | not its matter | `detect_anomaly`, off by default | infinity is refused in inputs, and NaN unless the estimator takes missing values | refused in inputs and in results |
| sizes before memory | header first, of at most 100 MB | not mentioned | not mentioned | header first, limits by option |
"""


def build(counts: dict[str, dict[str, Any]]) -> str:
    """The page for a record."""
    rows = []
    for name, (attempt, wrong) in MEANING.items():
        if name in counts:
            tries, failures = counts[name]["tries"], counts[name]["failures"]
            rows.append(f"| {name} | {attempt} | {wrong} | {tries:,} | {failures} |\n")
    peaks = [own["peak"] for own in counts.values() if "peak" in own]
    memory = (
        f"\nNo category of calls, commands and files took more than {max(peaks) / 2**30:.1f} GiB; "
        "each may take 3 GiB beyond torch itself.\n"
        if peaks
        else ""
    )
    return BEFORE + "".join(rows) + memory + AFTER


def write() -> None:
    FILE.write_text(build(record.read()), encoding="utf-8")
