"""``docs/reliability.md``, built from the record of the counted suite."""

# ruff: noqa: E501

from pathlib import Path
from typing import Any

from tests.hardening import record

FILE = Path(__file__).parents[2] / "docs" / "reliability.md"

#: What a try of each category is, and what would be a failure.
MEANING = {
    "API calls": (
        "a public function with one argument or so of a wrong type, shape, device or size",
        "a raw error from torch or Python, a NaN or an infinity in the result, a hang",
    ),
    "estimator calls": (
        "`fit`, `predict`, `predict_std`, `ood_score` … with bad tables, targets or parameters",
        "the same",
    ),
    "command lines": (
        "a command on a damaged run folder or a hostile file",
        "a traceback, no message, an exit status other than 0 or 2, a hang",
    ),
    "hostile files": (
        "a file made by hand or damaged, through every reader of its kind",
        "any error other than one sentence that names the file, a hang, more memory than allowed",
    ),
    "damaged files": (
        "one flipped bit in a checkpoint, predictions, weights, features or a detector",
        "wrong values are loaded without an error",
    ),
    "pairs of writers": (
        "two processes that train, resume, sweep, extract or report into one folder at the same time",
        "both write, a traceback, duplicate or missing epochs, files left over",
    ),
    "full disks": (
        "a disk that fills up during a run, then has room again",
        "a traceback, no message, or different bytes after resuming",
    ),
    "kills of train": (
        "`dissensus train --resume`, killed at a random moment",
        "more than the running epoch is lost, the folder cannot be read, different bytes at the end",
    ),
    "kills of sweep": ("`dissensus sweep`, the same", "the same, for cells"),
    "kills of features": ("`features.extract`, the same", "the same, for shards"),
    "kills of torchrun": (
        "two ranks with torchrun's environment; one or both are killed",
        "the same as for train, or a rank that does not end",
    ),
}

BEFORE = """# Reliability

[SECURITY.md](../SECURITY.md) lists the promises. This page says how they are tested and with what result. `make fuzz` runs
the counted suite in `tests/hardening`, with fixed seeds, and writes this page; `make test` runs a short part of it.

| what | one try | a failure would be | tries | failures |
|---|---|---|---:|---:|
"""

AFTER = """
A kill is a `SIGKILL` at a moment drawn uniformly over the length of a run. The process was forked from one that had already
imported everything; ranks are started as torchrun would start them, but without its agent. The resumed run is compared with one
that was never killed: the bytes of metrics, configuration, predictions and features, every tensor of the checkpoint, every
result of a sweep. Files that contain times (`record.json`, `state.json`) are not compared.

Formulas that training evaluates at every step (`losses.mse`, `losses.errors`, `outputs.weighted_mean`, `diversity.entropy` and
others) check types and shapes but not values: NaN in, NaN out. All other functions check values too. `ds.fit` is called with
inputs of the type and width that its network takes: errors inside a network's own layers are torch's.

A category can be run separately and keeps its row until its next run, so rows may come from different runs.

## Other libraries

According to their documentation and sources (safetensors 0.8, Lightning 2.6, scikit-learn 1.9, torch 2.13). They were not put
through this suite; only the flipped bit in a file of `torch.save` was tried.

| | safetensors | Lightning | scikit-learn | Dissensus |
|---|---|---|---|---|
| a file runs no code | yes, by its format | checkpoints are pickles; `weights_only=True` is advised for untrusted ones | pickles run code; ONNX and skops are recommended as safer | yes, except pt2 files and `--trust` |
| a flipped bit is noticed | no checksum; the header is checked | not in weights: `torch.load` ignores the checksums that `torch.save` writes | no checksum of its own | in tensors, headers, features, detectors |
| interrupted training continues | out of scope | from the last checkpoint; within an epoch it warns, unless the loader can restore its position | with `warm_start` or `partial_fit`, in some estimators | to the same bits |
| two writers | out of scope | not mentioned | not mentioned | the second is refused |
| bad values | out of scope | `detect_anomaly`, off by default | inputs with infinity are refused, and with NaN unless the estimator accepts missing values | refused in inputs and in results |
| sizes are checked before memory is taken | header first, of at most 100 MB | not mentioned | not mentioned | header first, with configurable limits |
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
        "the limit is 3 GiB beyond torch itself.\n"
        if peaks
        else ""
    )
    return BEFORE + "".join(rows) + memory + AFTER


def write() -> None:
    FILE.write_text(build(record.read()), encoding="utf-8")
