"""Figures: the numbers they show, and the sentences made of them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import dissensus as ds
from dissensus.show import Matrix, Panel, Rule, draw, save
from dissensus.show.contents import Contents, Method, Record
from dissensus.show.explorer import explorers
from dissensus.show.figure import Figure
from dissensus.show.figures import FIGURES
from dissensus.show.overview import columns
from dissensus.show.page import page_text
from dissensus.show.plot import plot_json
from dissensus.show.reader import read


@pytest.fixture(scope="module")
def contents(folders: Path, runs: list[Path]) -> Contents:
    return read([*runs, folders / "sweeps" / "beta"])


def made(name: str, contents: Contents) -> Figure:
    plot = FIGURES[name].make(contents)
    assert plot is not None
    return plot


def panel_of(plot: Figure, view: int = 0, place: int = 0) -> Panel:
    panel = plot.views[view].plot.panels[place]
    assert isinstance(panel, Panel)
    return panel


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_sentence_values_and_sources(name: str, contents: Contents) -> None:
    assert FIGURES[name].make(Contents()) is None
    figure = made(name, contents)
    assert all(source.file.is_file() or source.file.is_dir() for source in figure.sources)
    for plot, choice, values in figure.views:
        assert len(choice) == len(figure.views[0].choice)
        assert values
        assert plot.alt.endswith(".")
        assert any(character.isdigit() for character in plot.alt), plot.alt
        described = plot_json(plot)
        assert len(json.dumps(described, allow_nan=False)) < 200_000
        for panel in described["panels"]:
            for series in panel.get("series", ()):
                assert len(series["x"]) == len(series["y"]) + (series["kind"] == "steps")
                assert len(series["x"]) <= 200


def test_the_sweep_shows_means_with_bands(contents: Contents, folders: Path) -> None:
    plot = made("beta-sweep", contents)
    assert [view.choice[0].partition(" ")[0] for view in plot.views] == ["beta", "the"]
    summary = json.loads((folders / "sweeps" / "beta" / "summary.json").read_text())
    own, members = panel_of(plot).series
    errors = [row["test"]["ensemble_error"] for row in summary["rows"]]
    assert list(own.y) == pytest.approx([error["mean"] for error in errors])
    assert own.high is not None
    assert list(own.high) == pytest.approx([error["mean"] + error["sd"] for error in errors])
    assert (own.name, members.name) == ("ERR", "mean ERR")
    share = panel_of(plot, place=3).series[0]
    shares = [row["diagnosis"]["debiased_share"]["mean"] for row in summary["rows"]]
    assert list(share.y) == pytest.approx(shares)
    chosen = f"{summary['best']['label']}, {summary['chosen_by']}"
    assert contents.sweeps[0].choice == chosen


def test_runs_with_three_beta_are_a_sweep_too(contents: Contents) -> None:
    line = panel_of(made("beta-sweep", contents), view=1).series[0]
    by_name = {method.name: method.numbers["ensemble_error"].value for method in contents.methods}
    assert list(line.x) == [0.0, 0.5, 1.0]
    assert list(line.y) == [by_name[name] for name in ("independent", "half", "joint")]


def test_codependence_and_debiased_share_are_those_of_the_library(
    contents: Contents, runs: list[Path]
) -> None:
    data = ds.data.load("digits")
    ens = ds.load(runs[1])
    before, after = (ds.predict(ens, part) for part in (data.train, data.test))
    found = ds.diagnose(before, after, combine="score")
    plot = made("codependence", contents)
    line = panel_of(plot).series[1]
    rises = [drop.relative for drop in found.codependence.drops if drop.dropped]
    assert list(line.y) == pytest.approx([0.0, *rises], rel=1e-4)
    assert list(line.x) == pytest.approx(
        [0.0, *(d.dropped / 3 for d in found.codependence.drops if d.dropped)]
    )
    index = panel_of(plot, place=1).series[1]
    assert index.y[0] == pytest.approx(found.codependence.index, rel=1e-4)
    bars = panel_of(made("debiased-share", contents)).series
    assert bars[1].y[0] == pytest.approx(found.shares["test"]["score"].share, rel=1e-4)


def test_matrices_are_those_of_the_predictions(contents: Contents, runs: list[Path]) -> None:
    plot = made("members", contents)
    measures = [view.choice[0].partition(",")[0] for view in plot.views]
    assert measures == ["disagreement", "error correlation", "attack transfer"]
    matrix = plot.views[0].plot.panels[1]
    assert isinstance(matrix, Matrix)
    kept = ds.Predictions.load(runs[1] / "predictions" / "test.safetensors")
    votes = kept.outputs.argmax(-1).numpy()
    expected = (votes[:, None] != votes[None]).mean(-1)
    np.testing.assert_allclose(matrix.values, expected, atol=1e-6)
    record = json.loads((runs[1] / "robustness" / "record.json").read_text())
    moved = plot.views[2].plot.panels[1]
    assert isinstance(moved, Matrix)
    np.testing.assert_array_equal(moved.values, record["transfer"]["accuracy"])


def test_ensemble_diversity_is_equation_3_of_adp(contents: Contents, runs: list[Path]) -> None:
    """The determinant by NumPy, with the predicted class left out."""
    kept = ds.Predictions.load(runs[3] / "predictions" / "test.safetensors")
    probs = torch.softmax(kept.outputs.double(), -1).numpy()
    logs = []
    for place, predicted in enumerate(probs.mean(0).argmax(-1)):
        others = np.delete(probs[:, place], predicted, axis=-1)
        others /= np.linalg.norm(others, axis=-1, keepdims=True)
        logs.append(np.log(np.linalg.det(others @ others.T + 1e-6 * np.eye(3))))
    plot = made("ensemble-diversity", contents)
    assert float(plot.views[0].values["adp"]) == pytest.approx(np.median(logs), rel=0.01)
    for series in panel_of(plot).series:
        assert sum(series.y) == pytest.approx(1.0)


def test_roc_and_histograms_are_those_of_the_record(contents: Contents, runs: list[Path]) -> None:
    record = json.loads((runs[0] / "ood" / "ood.json").read_text())
    plot = made("roc", contents)
    assert [view.choice for view in plot.views] == [("pds",), ("bma",)]
    panels = plot.views[0].plot.panels
    assert [panel.title for panel in panels] == ["corrupt:2", "corrupt:5"]
    curve = next(row for row in record["curves"] if row["set"] == "corrupt:2")
    assert list(panel_of(plot).series[0].x) == curve["fpr"]
    histogram = made("score-histograms", contents)
    known, unknown = panel_of(histogram).series
    share = record["histograms"][0]["share"]
    assert list(known.y) == share["test"]
    assert list(unknown.y) == share["corrupt:2"]
    assert panel_of(histogram).rules == (Rule("x", record["histograms"][0]["threshold"]),)


def test_attacks_start_at_the_clean_accuracy(contents: Contents, runs: list[Path]) -> None:
    record = json.loads((runs[0] / "robustness" / "record.json").read_text())
    line, point = panel_of(made("accuracy-epsilon", contents)).series[:2]
    curve = next(row for row in record["curves"] if row["over"] == "eps")
    assert (line.x[0], line.y[0]) == (0.0, record["clean_accuracy"]["accuracy"])
    assert list(line.y[1:]) == curve["accuracy"]
    assert (point.kind, point.y[0]) == ("points", record["budgets"][0]["accuracy"])
    over = {view.choice[0] for view in made("accuracy-steps", contents).views}
    assert over == {"steps", "restarts"}


def test_the_explorer_moves_over_the_same_points(contents: Contents, folders: Path) -> None:
    sweep, own = explorers(contents)
    stops = [[stop["beta"] for stop in one.values["stops"]] for one in (sweep, own)]
    assert stops == [[0, 0.5, 1]] * 2
    shown = np.array([stop["values"] for stop in sweep.values["stops"]])
    assert shown.shape == (3, 3, 40, 10)
    np.testing.assert_allclose(shown.mean(-1), 0, atol=1e-2)  # scores are centred
    file = next((folders / "sweeps" / "beta" / "cells").glob("beta=0.5+repeat=0.json"))
    raw = np.array(json.loads(file.read_text())["result"]["held_out"]["outputs"])
    np.testing.assert_allclose(shown[1], raw - raw.mean(-1, keepdims=True), atol=1e-2)
    assert sweep.values["stops"][2]["texts"]["verdict"]
    kept = ds.Predictions.load(folders / "runs" / "joint" / "predictions" / "test.safetensors")
    scores = kept.outputs[:, :40].double()
    centred = (scores - scores.mean(-1, keepdim=True)).numpy()
    np.testing.assert_allclose(np.array(own.values["stops"][2]["values"]), centred, atol=1e-2)


def test_columns_are_those_that_runs_fill(contents: Contents) -> None:
    table = columns(contents)
    assert list(table) == [
        *("accuracy", "nll", "ece_width", "ensemble_error", "member_error", "diversity"),
        *("verdict", "auroc", "robust"),
    ]
    assert not any(number is not None and number.best for number in table["diversity"].numbers)
    assert table["auroc"].numbers[3] is None
    assert "ε = 0.2" in table["robust"].metric.meaning
    for number, method in zip(table["robust"].numbers, contents.methods, strict=True):
        if number is not None and method.attacks is not None:
            assert ("doubtful" in number.doubt) == bool(method.attacks.rows("flags"))


def planted(*robust: float, verdicts: tuple[str, ...] = (), half: float = 0.07) -> Contents:
    """Runs with these worst-case accuracies, their intervals and verdicts, and nothing else."""
    methods = []
    for number, accuracy in enumerate(robust):
        row = {"norm": "linf", "eps": 0.1, "accuracy": accuracy}
        row |= {"low": accuracy - half, "high": accuracy + half}
        path, word = Path(f"run{number}"), dict(enumerate(verdicts)).get(number, "healthy")
        records = {
            "attacks": Record(path / "r.json", {"budgets": [row]}),
            "diagnosis": Record(path / "d.json", {"verdict": word, "reasons": ["Why."]}),
        }
        facts = (f"run{number}", path, "adp", 3, "digits", "classification", "finished", "test")
        methods.append(Method(*facts, numbers={}, **records))
    return Contents(tuple(methods))


def said(contents: Contents) -> str:
    """The sentences at the top of the page, without markup."""
    page = page_text(contents, Path())
    return " ".join(re.findall(r"<li>(.*?)</li>", page.partition('<ul class="short">')[2]))


def test_what_cannot_be_told_from_the_best_is_marked_with_it() -> None:
    def marks(*accuracies: float) -> list[bool]:
        return [n.best for n in columns(planted(*accuracies))["robust"].numbers if n]

    assert marks(0.48, 0.475, 0.48) == [False] * 3  # equal: nobody wins
    assert marks(0.48, 0.475, 0.10) == [True, True, False]
    assert marks(0.48, 0.10, 0.10) == [True, False, False]
    assert "48.0% at best and 47.5% at worst: no difference" in said(planted(0.48, 0.475, 0.48))
    apart = planted(0.48, 0.475, 0.1)
    assert "run0 (48.0% [41%, 55%]). Not distinguishable from it: run1." in said(apart)
    rows = made("accuracy-epsilon", apart).rows
    assert [row[2][0].best for row in rows] == [True, True, False]  # type: ignore[union-attr]


def test_a_colluding_ensemble_is_never_crowned_without_a_word(tmp_path: Path) -> None:
    contents = planted(0.48, 0.20, 0.10, verdicts=("colluding",), half=0.02)
    number = columns(contents)["robust"].numbers[0]
    assert number is not None
    assert (number.best, number.doubt) == (True, "colluding")
    assert "all attacks: run0, which is colluding, (48.0%" in said(contents)
    page = page_text(contents, tmp_path)
    assert '<span class="doubt"> colluding</span>' in page
    assert "Shaded: not distinguishable from the best of its column" in page


def test_accuracies_of_runs_are_compared_input_by_input(contents: Contents) -> None:
    """The parts of every metric add up to it, so that the same inputs can be compared."""
    for method in contents.methods:
        for name in ("accuracy", "nll", "ece_width", "ensemble_error", "member_error"):
            number = method.numbers[name]
            assert number.parts is not None, name
            assert len(number.parts) == 359
            assert number.parts.mean() == pytest.approx(number.value, rel=1e-4)


def test_repeats_of_a_sweep_are_compared_one_by_one(contents: Contents, folders: Path) -> None:
    for point in contents.sweeps[0].points:
        number = point.numbers["ensemble_error"]
        assert number.parts is not None
        cells = sorted((folders / "sweeps" / "beta" / "cells").glob(f"beta={point.x:g}+*.json"))
        tests = [json.loads(cell.read_text())["result"]["test"] for cell in cells]
        values = [test["ensemble_error"] for test in tests]
        assert number.parts.tolist() == pytest.approx(values)


def test_findings_name_the_best_and_say_what_is_no_finding(contents: Contents) -> None:
    accuracy = {method.name: method.numbers["accuracy"].value for method in contents.methods}
    best = max(accuracy, key=lambda name: accuracy[name])
    assert f"Highest accuracy: {best} ({accuracy[best]:.1%})." in said(contents)
    assert "are not findings" in said(contents)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_for_papers(name: str, contents: Contents, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = made(name, contents).view()
    assert sum(axes.get_visible() for axes in draw(plot).axes) == len(plot.panels)
    assert "<svg" in save(plot, tmp_path / f"{name}.svg").read_text()[:1000]


def test_views_are_named_by_a_part_of_their_choices(contents: Contents) -> None:
    figure = made("roc", contents)
    assert figure.view("bma") is figure.views[1].plot
    with pytest.raises(ValueError, match="the figure has no view 'energy'; it has: pds; bma"):
        figure.view("energy")
