"""Tabular results: short reprs, escaped HTML, data frames."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import dissensus as ds
from dissensus.tools.tabular import Tabular, html_table

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 40, 4, generator=GENERATOR)
TARGETS = torch.arange(40) % 4
SCORES = {
    name: {score: torch.rand(30, generator=GENERATOR) + far for score in ("pds", "bma")}
    for name, far in (("test", 0.0), ("far", 0.5))
}


def make_results() -> dict[str, Tabular]:
    """One of each result that is a table or a curve, below the verbs."""
    ens = ds.Ensemble(lambda: nn.Linear(4, 4), members=3)
    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(1))
    attacks = {"attacks": ["fgsm:eps=0.1", "pgd:eps=0.2,steps=2"], "progress": False}
    history = ds.fit(ens, (x, TARGETS), val=(x, TARGETS), epochs=3, progress=False)
    calibration = ds.calibration.calibration(LOGITS, TARGETS)
    return {
        "History": history,
        "Decomposition": ds.decompose(LOGITS, TARGETS),
        "Diagnosis": ds.diagnose((LOGITS, TARGETS), (LOGITS, TARGETS)),
        "Detection": ds.detection.evaluate(SCORES["test"]["pds"], SCORES["far"]["pds"]),
        "RocCurve": ds.detection.roc_curve(SCORES["test"]["pds"], SCORES["far"]["pds"]),
        "Study": ds.detection.compare(SCORES, "test", bootstrap=20),
        "Calibration": calibration,
        "Reliability": calibration.width,
        "Robustness": ds.robustness.evaluate(ens, x, TARGETS, **attacks),
        "Outcome": ds.robustness.attack(ens, x, TARGETS, "fgsm:eps=0.1", progress=False),
        "Curve": ds.robustness.evaluation.curve_over_eps(
            ens, x, TARGETS, "fgsm:eps=0.1", [0.1, 0.2]
        ),
        "AdversarialDetection": ds.robustness.detect(
            ens, x, TARGETS, "fgsm:eps=0.3", bootstrap=20, progress=False
        ),
    }


@pytest.fixture(scope="module")
def results() -> dict[str, Tabular]:
    return make_results()


def test_every_result_has_a_short_repr_html_and_a_frame(results: dict[str, Tabular]) -> None:
    pandas = pytest.importorskip("pandas")
    for name, result in results.items():
        assert type(result).__name__ == name
        assert repr(result).startswith(f"<{name}: "), name
        assert len(repr(result)) < 170, repr(result)
        assert "\n" not in repr(result)
        page, rows = result._repr_html_(), result.to_rows()
        assert page.count("<tr>") == 1 + min(len(rows), 30), name
        assert result.to_frame().equals(pandas.DataFrame(rows)), name


def test_tables_hold_the_numbers(results: dict[str, Any]) -> None:
    terms = results["Decomposition"].to_frame().set_index("term")["value"]
    assert terms["diversity"] == pytest.approx(terms["member_error"] - terms["ensemble_error"])
    history = results["History"]
    assert history.to_frame()["val/ensemble_error"].tolist() == history.column("val/ensemble_error")
    assert "val/per_member_error/2" in history.to_frame()
    assert repr(history) == f"<History: 3 epochs, best epoch: {history.best_epoch}>"
    curve = results["RocCurve"]
    false_alarms, found, _ = curve  # still a tuple
    assert curve.to_frame()["true_positive_rate"].tolist() == found.tolist()
    assert len(false_alarms) == len(curve.to_rows())
    assert results["Outcome"].to_frame()["success"].mean() == results["Outcome"].success_rate
    assert repr(ds.Predictions(LOGITS, TARGETS)) == "Predictions(outputs=[3, 40, 4], targets=[40])"


def test_html_is_escaped_and_cut_short() -> None:
    rows = [{"<b>": "</td><script>", "none": None, "number": 1 / 3}] * 31
    page = html_table(rows, "<i>caption</i>")
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<td>&lt;/td&gt;&lt;script&gt;</td><td></td><td>0.3333</td>" in page
    assert "1 more rows in to_frame()" in page
    wide = html_table([{f"c{i}": i for i in range(18)}])
    assert "2 more columns" in wide
    assert "c16" not in wide


@pytest.mark.slow
def test_every_result_has_a_plot_that_notebooks_show(results: dict[str, Tabular]) -> None:
    pytest.importorskip("matplotlib")
    from dissensus.show.results import PLOTS

    verbs = ["RunEvaluation", "Detections", "RunRobustness", "RunDiagnosis", "TrainedRun"]
    assert set(PLOTS) == {*results, *verbs}  # tests of `runs` draw the latter
    for name, result in results.items():
        figure: Any = result.plot()
        assert figure.axes, name
        assert figure._repr_png_().startswith(b"\x89PNG"), name


def test_plots_draw_the_numbers(results: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    error = results["History"].plot().axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in error.get_lines()}
    assert drawn["val"] == results["History"].column("val/ensemble_error")
    (outcome,) = results["Outcome"].plot().axes
    assert outcome.get_lines()[0].get_ydata()[-1] == pytest.approx(results["Outcome"].accuracy)
    heights = [bar.get_height() for bar in results["Decomposition"].plot().axes[1].patches]
    assert heights == pytest.approx(results["Decomposition"].per_member.tolist())


def test_without_a_plot_or_matplotlib_the_error_says_what_to_do(
    results: dict[str, Tabular], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Prices(Tabular):
        def to_rows(self) -> list[dict[str, Any]]:
            return []

        def headline(self) -> str:
            return ""

    with pytest.raises(TypeError, match=r"Prices has no plot; use its to_frame\(\)\. History, "):
        Prices().plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'dissensus\[plots\]'"):
        results["History"].plot()
