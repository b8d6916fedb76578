"""``dissensus predict``: arrays and tables in, probabilities, predictions and scores out."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds


def load_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_probabilities_members_and_scores(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    x = ds.data.load("digits").test[0][:7]
    np.savez(tmp_path / "x.npz", x=x.numpy(), other=np.zeros(3))
    wanted = ["--input", tmp_path / "x.npz", "--output", tmp_path / "p.npz"]
    answer = dissensus(
        "predict", digits_run, *wanted, "--members", "--score", "pds", "--score", "entropy"
    )
    assert answer.status == 0
    assert answer.out.startswith("7 predictions written to")
    found, ens = load_npz(tmp_path / "p.npz"), ds.load(digits_run)
    assert list(found) == ["probs", "labels", "classes", "members", "score_pds", "score_entropy"]
    assert torch.allclose(torch.from_numpy(found["probs"]), ens.predict(x), atol=1e-6)
    assert found["labels"].tolist() == ens.predict(x).argmax(-1).tolist()
    assert found["classes"].tolist() == [str(digit) for digit in range(10)]
    logits = torch.from_numpy(found["members"])
    assert torch.allclose(logits, ens(x).detach(), atol=1e-6)
    scores = torch.from_numpy(found["score_pds"])
    assert torch.allclose(scores, ds.scores.SCORES["pds"](logits), atol=1e-6)


def test_the_only_array_bytes_and_npy(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", images=pixels)
    np.save(tmp_path / "floats.npy", pixels / 255)
    found = []
    for name in ("bytes.npz", "floats.npy"):
        wanted = ["--input", tmp_path / name, "--output", tmp_path / "p.npz"]
        assert dissensus("predict", digits_run, *wanted).status == 0
        found.append(load_npz(tmp_path / "p.npz")["probs"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_a_table_with_its_statistics(
    dissensus: Callable[..., Any], flats_run: Path, tmp_path: Path
) -> None:
    """Columns in another order, without the target: the same rows give the same predictions."""
    data = ds.data.load(flats_run.parent / "flats.csv", target="price", drop=["id"])
    x, _ = data.test
    rows = (flats_run.parent / "flats.csv").read_text().splitlines()
    chosen = [rows[1 + number].split(",") for number in data.rows["test"].tolist()]
    lines = ["town,note,rooms"] + [f"{town},hm,{rooms}" for rooms, town, _, _ in chosen]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    wanted = [
        "--input",
        tmp_path / "new.csv",
        "--output",
        tmp_path / "p.csv",
        "--score",
        "variance",
    ]
    answer = dissensus("predict", flats_run, *wanted)
    assert answer.status == 0
    assert "does not know: note" in answer.err
    with (tmp_path / "p.csv").open() as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == ["mean", "score_variance"]
    expected = data.original(ds.load(flats_run).predict(x)).squeeze(1)
    assert [float(row["mean"]) for row in read] == pytest.approx(expected.tolist(), rel=1e-5)


def test_regression_members_are_in_the_units_of_the_target(
    dissensus: Callable[..., Any], diabetes_run: Path, tmp_path: Path
) -> None:
    table = ds.data.load_table("diabetes")
    np.save(tmp_path / "x.npy", np.stack(list(table.columns.values()), 1)[:5])
    wanted = ["--input", tmp_path / "x.npy", "--output", tmp_path / "p.npz", "--members"]
    assert dissensus("predict", diabetes_run, *wanted).status == 0
    found = load_npz(tmp_path / "p.npz")
    assert list(found) == ["mean", "members"]
    np.testing.assert_allclose(found["members"].mean(0), found["mean"], rtol=1e-5)
    assert 20 < found["mean"].mean() < 400


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((4, 8, 8)), "must be [rows, 1, 8, 8], as digits has them, got (4, 8, 8); add"),
        (np.zeros((1, 8, 8)), "for one example pass x[None]"),
        (np.zeros((4, 8, 8, 1)), "move the channels to the front"),
        (np.full((1, 1, 8, 8), np.nan), "the inputs hold 64 missing, NaN or infinite of 64"),
    ],
)
def test_wrong_inputs(
    array: Any, sentence: str, mistake: Callable[..., str], digits_run: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    wanted = ["--input", tmp_path / "x.npy", "--output", tmp_path / "p.npz"]
    assert sentence in mistake("predict", digits_run, *wanted)
    assert not (tmp_path / "p.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--input", "absent.npz", "--output", "p.npz"], "there is no file absent.npz"),
        (["--input", "x.npz", "--output", "p.txt"], "the output must end in .npz or .csv"),
        (["--input", "x.npz", "--output", "p.csv", "--members"], "does not fit into a .csv"),
        (["--input", "x.npz", "--output", "p.npz", "--score", "pd"], "'pd'; did you mean 'pds'?"),
        (["--input", "x.jpg", "--output", "p.npz"], "inputs must be .npz, .npy, .csv"),
        (["--input", "two.npz", "--output", "p.npz"], "or one array alone, got a, b"),
        (["--input", "t.csv", "--output", "p.npz"], "was no table; give the inputs as .npz"),
    ],
)
def test_mistakes(
    arguments: list[str],
    sentence: str,
    mistake: Callable[..., str],
    digits_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.zeros((2, 1, 8, 8)))
    np.savez("two.npz", a=np.zeros(3), b=np.zeros(3))
    Path("x.jpg").write_text("")
    Path("t.csv").write_text("a\n1\n")
    assert sentence in mistake("predict", digits_run, *arguments)
