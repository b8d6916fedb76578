"""Detection in files of predictions, and tables that mark what cannot be told from the best."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from dissensus.detection import evaluate
from dissensus.outputs import Predictions
from dissensus.runs import detect
from dissensus.runs.detections import DetectionTable
from dissensus.scores import SCORES


def row(score: str, auroc: float, half: float | None) -> dict[str, Any]:
    ends = {} if half is None else {"auroc_low": auroc - half, "auroc_high": auroc + half}
    return {"method": "run", "score": score, "set": "far", "auroc": auroc, **ends}


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        ([row("a", 0.9, 0.02), row("b", 0.89, 0.02), row("c", 0.6, 0.02)], {"a", "b"}),
        ([row("a", 0.9, 0.02), row("b", 0.89, 0.02)], set()),  # nothing can be told apart
        ([row("a", 0.9, None), row("b", 0.2, None)], set()),  # no intervals
        ([row("a", 0.9, 0.01)], set()),
    ],
)
def test_marks_are_what_cannot_be_told_from_the_best(
    rows: list[dict[str, Any]], marked: set[str]
) -> None:
    record = {"detection": rows, "groups": {}, "group_means": []}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(DetectionTable(record, "auroc"))
    lines = [line.split() for line in console.export_text().splitlines()]
    shown = {line[0]: line[1] for line in lines if line and line[0] in "abc"}
    shown |= {line[1]: line[2] for line in lines if len(line) > 2 and line[1] in "abc"}
    assert set(shown) == {r["score"] for r in rows}
    assert {name for name, value in shown.items() if value.startswith("*")} == marked


def test_files_of_predictions_are_studied_without_a_model(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(3, 50, 6, generator=generator) + 4 * torch.eye(6)[0]
    strange = torch.randn(3, 40, 6, generator=generator)
    files = [tmp_path / "known.safetensors", tmp_path / "strange.safetensors"]
    for file, logits in zip(files, (known, strange), strict=True):
        Predictions(logits).save(file)
    detections = detect(files[0], unknown=[files[1]], scores=["bma"], bootstrap=0)
    expected = evaluate(SCORES["bma"](known), SCORES["bma"](strange), bootstrap=0)
    assert detections.to_rows()[0]["auroc"] == expected.auroc
    assert {row["flagged"] for row in detections.to_rows()} == {None}  # there is no validation data
    probs = [tmp_path / f"{name}.npz" for name in ("known", "strange")]
    for file, logits in zip(probs, (known, strange), strict=True):
        np.savez(file, p=logits.softmax(-1).numpy())
    asked = {"far": [probs[1]], "keys": {"outputs": "p"}, "bootstrap": 0}
    found = detect(probs[0], **asked, probs=True)
    assert found.record["groups"] == {"far": ["strange"]}
    aurocs = {row["score"]: row["auroc"] for row in found.to_rows()}
    assert aurocs["bma"] == pytest.approx(expected.auroc, abs=1e-3)
    assert not {"energy", "max_logit"} & aurocs.keys()  # probabilities have none
    with pytest.raises(ValueError, match="look like probabilities"):
        detect(probs[0], **asked)
    with pytest.raises(ValueError, match="knn cannot be computed from predictions alone"):
        detect(files[0], unknown=[files[1]], scores=["bma", "knn"])
    with pytest.raises(ValueError, match="two files have the same name"):
        detect(files[0], unknown=[files[0]], scores=["bma"])
