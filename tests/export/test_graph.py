"""Exported files give the library's outputs, where there is no library."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.data import Encoder, Preparation
from dissensus.data.preparation import Column
from dissensus.export import graph
from dissensus.export.onnx_graph import onnx_runner
from dissensus.runs import DataSummary
from tests.export.elsewhere import run_elsewhere

FORMATS: dict[str, Callable[..., dict[str, Any]]] = {
    "onnx": ds.export.to_onnx,
    "pt2": ds.export.to_pt2,
}
CLASSIFIER_SCORES = [name for name in ds.scores.SCORES if name != "variance"]


class Gated(nn.Module):
    """A network of one's own: attention over rows of pixels, a scale, a residual connection."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.key, self.scale = nn.Linear(32, 8), nn.Parameter(torch.rand(8))
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.key(x.mean(1))  # [batch, 32, 8]
        mixed = torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows
        logits: Tensor = self.out(self.norm(rows + self.scale * mixed).mean(1))
        return logits


@dataclass
class Case:
    """An ensemble, inputs of 1 and of 7 rows, and what the library makes of them."""

    ens: ds.Ensemble
    inputs: list[Any]
    expected: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def case(ens: ds.Ensemble, inputs: list[Tensor], raw: Any = None, **options: Any) -> Case:
    """With what the public functions give for ``inputs``; ``raw`` are the same in other units."""
    scores = options.get("score", [ds.detection.default_score(ens)])
    detector = options.get("detector")
    expected = []
    for x in inputs:
        with ens.evaluating():
            outputs = ens(x)
        found = {"mean" if ens.combine == "mean" else "probs": ens.predict(x), "members": outputs}
        found |= {f"score_{score}": ds.scores.parse(score)(outputs) for score in scores}
        found |= {} if detector is None else {"is_ood": detector.is_ood(x)}
        expected.append({name: tensor.numpy() for name, tensor in found.items()})
    return Case(ens, raw or [x.numpy() for x in inputs], expected, options)


def perturbed(ens: ds.Ensemble) -> ds.Ensemble:
    """With running statistics, scales and shifts that are not the initial ones."""
    for name, tensor in ens.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.rand_like(tensor)
            tensor.add_(noise if "running_var" in name else 0.2 * (noise - 0.5))
    return ens


def mlp_case() -> Case:
    """Scores, weights of members, and a detector with a score that is not among the outputs."""
    ens = ds.Ensemble(ds.models.make_factory("mlp", (20,), 5, hidden=(16,)), members=3, seed=1)
    ens.set_weights(torch.tensor([0.5, 0.3, 0.2]))
    inputs = [3 * torch.randn(size, 20) for size in (1, 7)]
    inputs[1][3] = 1e4 * torch.randn(20)  # logits far apart
    detector = ds.Detector(ens, "bma:temperature=2").fit(3 * torch.randn(51, 20), accept=0.5)
    scores = [name for name in CLASSIFIER_SCORES if name != "ensemble_diversity"]
    scores.append("energy:temperature=3")
    return case(ens, inputs, score=scores, detector=detector, name="mine")


def unlike_case() -> Case:
    """Members of five kinds: the papers' networks, and one of one's own."""
    shape = (3, 32, 32)
    makers = [
        ds.models.make_factory("mlp", shape, 5, hidden=(8,)),
        ds.models.make_factory("cnn", shape, 5),
        ds.models.make_factory("vgg", shape, 5, width=2),
        ds.models.make_factory("resnet20", shape, 5),
        lambda: Gated(5),
    ]
    ens = ds.Ensemble.from_members([make() for make in makers], combine="score")
    return case(perturbed(ens), [torch.rand(size, *shape) for size in (1, 7)])


def image_case() -> Case:
    """Convolutions and batch norms that normalise inside, fed with bytes as a run's images are.

    With ADP's score: a determinant, which ONNX has no operator for.
    """
    shape = (3, 8, 8)

    def make() -> nn.Module:
        scale = ds.models.InputNormalize([0.4] * 3, [0.2, 0.3, 0.4])
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
        return nn.Sequential(scale, *layers)

    pixels = [torch.randint(256, (size, *shape), dtype=torch.uint8) for size in (1, 7)]
    summary = DataSummary("pictures", "classification", list(shape), 5, {}, classes=list("abcde"))
    ens = perturbed(ds.Ensemble(make, members=3, seed=3))
    raw, scores = [x.numpy() for x in pixels], ["pds", "ensemble_diversity"]
    return case(ens, [x.float() / 255 for x in pixels], raw, summary=summary, score=scores)


def table_case() -> Case:
    """A regression on raw rows with a gap, outliers and large offsets, in its own units.

    Its members share weights.
    """
    rng = np.random.default_rng(0)
    rows = np.stack([rng.normal(1.7e9, 50.0, 60), rng.exponential(40.0, 60), rng.random(60)], 1)
    rows[4, 0] = np.nan
    encoder = Encoder.fit(rows, np.array([True, True, False]))
    columns = (
        Column("built", "number"),
        Column("area", "number"),
        Column("Bonn", "category", ("y",)),
    )
    summary = DataSummary(
        "flats",
        "regression",
        [encoder.inputs],
        2,
        {},
        features=["built", "area", "Bonn=y"],
        preprocessing={
            "preparation": Preparation(columns).to_dict(),
            "encoder": encoder.to_dict(),
            "target_mean": [200.0, -3.0],
            "target_std": [40.0, 0.5],
        },
    )

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(encoder.inputs, 9), nn.GELU(), nn.Linear(9, 2))

    ens = ds.Ensemble(make, members=3, combine="mean", sharing="adapters")
    raw = [rows[:1], rows[2:9]]
    found = case(ens, [torch.from_numpy(encoder(x)).float() for x in raw], raw, summary=summary)
    for arrays in found.expected:
        for name in ("mean", "members"):  # the score stays in the units that members train in
            arrays[name] = arrays[name] * np.array([40.0, 0.5]) + np.array([200.0, -3.0])
    return found


CASES = {"mlp": mlp_case, "unlike": unlike_case, "images": image_case, "table": table_case}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each case written in each format, and what one process without Dissensus makes of all."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    made = {name: make() for name, make in CASES.items()}
    jobs, entries = [], {}
    for name, one in made.items():
        for kind, write in FORMATS.items():
            file = folder / f"{name}.{kind}"
            example = None if name == "table" else torch.from_numpy(one.inputs[0])
            told = write(one.ens, example, file, **one.options)
            jobs.append((file, one.inputs))
            entries[f"{name}.{kind}"] = {"case": one, "told": told, "file": file}
            assert one.ens.training, "exporting must leave the ensemble as it is"
    for entry, (said, outputs) in zip(entries.values(), run_elsewhere(folder, jobs), strict=True):
        entry |= {"said": said, "outputs": outputs}
    return entries


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_library(cases: dict[str, Any], name: str, kind: str) -> None:
    entry = cases[f"{name}.{kind}"]
    for expected, got in zip(entry["case"].expected, entry["outputs"], strict=True):
        assert list(got) == list(expected) == list(entry["told"]["outputs"])
        for output, values in expected.items():
            assert got[output].shape == values.shape
            np.testing.assert_allclose(got[output], values, rtol=2e-4, atol=2e-5, err_msg=output)


@pytest.mark.slow
def test_names_and_metadata_are_in_the_file(cases: dict[str, Any]) -> None:
    entry, other = cases["mlp.onnx"], cases["images.onnx"]
    said, told = entry["said"], entry["told"]
    assert (said["input"], said["shape"]) == ("x", ["batch", 20])
    assert said["outputs"] == list(told["outputs"])
    assert said["meta"]["run"] == "mine"
    detector = entry["case"].options["detector"]
    described = json.loads(said["meta"]["detector"])
    assert (described["threshold"], described["accept"]) == (detector.threshold, detector.accept)
    assert json.loads(said["meta"]["versions"])["dissensus"] == ds.__version__
    assert json.loads(other["said"]["meta"]["classes"]) == list("abcde")
    assert "divides by 255" in json.loads(other["said"]["meta"]["input"])["units"]
    assert json.loads(cases["mlp.pt2"]["said"]["meta"]) == cases["mlp.pt2"]["told"]


@pytest.mark.slow
def test_nothing_about_this_machine_is_in_the_file(cases: dict[str, Any]) -> None:
    here = str(Path(ds.__file__).parent).encode()
    packages = str(Path(torch.__file__).parent).encode()
    for name in ("unlike.onnx", "mlp.onnx"):
        content = cases[name]["file"].read_bytes()
        assert here not in content
        assert packages not in content
        onnx.checker.check_model(content, full_check=True)
    with zipfile.ZipFile(cases["mlp.pt2"]["file"]) as archive:
        content = b"".join(archive.read(entry) for entry in archive.namelist())
    assert here not in content
    assert packages not in content


def test_a_file_flags_what_the_library_refuses(tmp_path: Path) -> None:
    """Non-finite outputs raise in the library; a graph can only call them strange."""
    ens = ds.Ensemble(lambda: nn.Linear(3, 4), members=2)
    detector = ds.Detector(ens, "unique").fit(torch.randn(9, 3))
    ds.export.to_pt2(ens, torch.randn(2, 3), tmp_path / "a.pt2", detector=detector)
    module = torch.export.load(tmp_path / "a.pt2").module()
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, torch.nan, 0.0], [0.0, torch.inf, 0.0]])
    assert module(x)["is_ood"].tolist() == [False, True, True]


@pytest.mark.parametrize("kind", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_a_tuned_detector_scores_by_its_own_members(kind: str, tmp_path: Path) -> None:
    """Predictions of the ensemble, scores of the tuned copy; the backbone is in the file once."""
    torch.manual_seed(0)
    ens = ds.Ensemble.on_features(
        nn.Sequential(nn.Linear(6, 50), nn.ReLU()), lambda: nn.Linear(50, 3), members=3
    )
    x, y, file = torch.randn(60, 6), torch.arange(60) % 3, tmp_path / f"a.{kind}"
    detector = ds.Detector(ens).tune((x, y), progress=False, optimizer="sgd:lr=1").fit(x)
    told = FORMATS[kind](ens, x[:3], file, detector=detector)
    assert told["detector"]["tuned"] == detector.tuning
    run = onnx_runner(file.read_bytes()) if kind == "onnx" else torch.export.load(file).module()
    got, far = run(x), 9 * x
    torch.testing.assert_close(got["probs"], ens.predict(x))
    torch.testing.assert_close(got["members"], ens(x).detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(got["tuned"], detector.tuned(x).detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(got["score_mutual_information"], detector.score(x))
    assert torch.equal(run(far)["is_ood"], detector.is_ood(far))
    assert not torch.allclose(got["members"], got["tuned"], atol=0.1)
    if kind == "pt2":
        kept = [tuple(t.shape) for t in torch.export.load(file).state_dict.values()]
        assert kept.count((50, 6)) == 1


class Either(nn.Module):
    """One of two layers, by the sign of the batch's sum: a graph with graphs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(
            x.sum() > 0, lambda x: self.one(x).clone(), lambda x: self.other(x).clone(), (x,)
        )
        return chosen


@pytest.mark.slow
def test_graphs_inside_and_outputs_that_are_one_value(tmp_path: Path) -> None:
    """With one member several scores are the same number, which an optimiser finds out."""
    ens = ds.Ensemble(Either, members=1, execution="looped")
    scores = ["bma", "confidence", "max_softmax"]
    ds.export.to_onnx(ens, torch.randn(2, 3), tmp_path / "a.onnx", score=scores)
    run = onnx_runner((tmp_path / "a.onnx").read_bytes())
    for x in (torch.rand(4, 3), -torch.rand(1, 3)):
        found = run(x)
        assert list(found) == ["probs", "members", *(f"score_{score}" for score in scores)]
        torch.testing.assert_close(found["probs"], ens.predict(x))
        for score in scores:
            torch.testing.assert_close(found[f"score_{score}"], -found["probs"].amax(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_a_run_takes_what_read_inputs_takes(dtype: torch.dtype, tmp_path: Path) -> None:
    """Flat inputs of any kind reach the members as float32, and bytes that are no pixels as is."""
    summary = DataSummary("rows", "classification", [4], 3, {})
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=2)
    x = torch.randint(9, (5, 4)).to(dtype)
    np.save(tmp_path / "x.npy", x.numpy())
    ds.export.to_pt2(ens, x, tmp_path / "a.pt2", summary=summary)
    found = torch.export.load(tmp_path / "a.pt2").module()(x)
    expected = ens.predict(ds.data.read_inputs(tmp_path / "x.npy", summary).x)
    torch.testing.assert_close(found["probs"], expected)


# ---- mistakes -----------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(x)
        return logits if x.sum() > 0 else 2 * logits


class FixedBatch(Branching):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(x.reshape(len(x), -1)).reshape(3, 3)
        return logits


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (Branching, {}, "cannot trace Branching: a graph holds no branching"),
        (FixedBatch, {}, "FixedBatch fixes the number of rows"),
        (lambda: nn.Linear(5, 3), {}, r"Linear cannot take inputs of shape \(3, 4\)"),
        (lambda: nn.Linear(4, 3), {"score": "pd"}, "did you mean 'pds'"),
        (lambda: nn.Linear(4, 3), {"score": "variance"}, "variance is a score of regressors"),
        (lambda: nn.Linear(4, 3), {"score": "knn"}, "knn cannot be exported: it needs features"),
        (lambda: nn.Linear(4, 3), {"score": "ensemble_diversity"}, "at most classes − 1 = 2"),
    ],
)
def test_what_cannot_be_exported(
    make: Callable[[], nn.Module], options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    ens = ds.Ensemble(make, members=3)
    with pytest.raises(ValueError, match=sentence):
        ds.export.to_pt2(ens, torch.zeros(2, 4), tmp_path / "a.pt2", **options)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    with torch.no_grad():
        ens.stack.bias[1, 2] = torch.nan
    sentence = "the weights stack.bias must be finite, got 1 NaN or infinite of 9 values"
    with pytest.raises(ValueError, match=sentence):
        ds.export.to_pt2(ens, torch.zeros(2, 4), tmp_path / "a.pt2")
    with pytest.raises(ValueError, match=sentence):
        ds.export.save_folder(ens, tmp_path / "hub")
    assert list(tmp_path.iterdir()) == []


def test_detectors_that_cannot_be_exported(tmp_path: Path) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    x = torch.randn(60, 4)
    distance = ds.detection.Mahalanobis().fit(x, torch.arange(60) % 3)
    told = {
        "score is mahalanobis, which cannot be exported": ds.Detector(ens, distance).fit(x),
        "a function of your own cannot be exported": ds.Detector(ens, lambda z: z[0, :, 0]).fit(x),
        "no threshold yet": ds.Detector(ens, "pds"),
    }
    for sentence, detector in told.items():
        with pytest.raises(ValueError, match=sentence):
            ds.export.to_pt2(ens, x, tmp_path / "a.pt2", detector=detector)


@pytest.mark.parametrize("example", [torch.zeros(0, 4), torch.tensor(1.0), [[0.0] * 4], None])
def test_examples_that_say_nothing(example: Any, tmp_path: Path) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    with pytest.raises(ValueError, match=r"example must be|pass an example"):
        ds.export.to_pt2(ens, example, tmp_path / "a.pt2")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(graph, "find_spec", lambda name: None if name == "onnxruntime" else 1)
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    with pytest.raises(ValueError, match=r"needs onnxruntime.*dissensus\[export\]"):
        ds.export.to_onnx(ens, torch.zeros(1, 4), tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("_LARGEST", 10, "an ONNX file holds 2 GiB"),
        ("_OLDEST", (99, 0), "ONNX needs torch .* or newer, this is"),
    ],
)
def test_limits_of_onnx(
    name: str, value: Any, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(graph, name, value)
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3)
    with pytest.raises(ValueError, match=sentence):
        ds.export.to_onnx(ens, torch.zeros(1, 4), tmp_path / "a.onnx")


def test_what_onnx_does_not_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(3, 3), members=2)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("No ONNX function found for aten.foo\nand more")

    with pytest.raises(ValueError, match="onnxruntime cannot run the graph"):
        onnx_runner(b"nonsense")
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ValueError, match=r"use pt2.*No ONNX function found for aten\.foo$"):
        ds.export.to_onnx(ens, torch.ones(3, 3), tmp_path / "a.onnx")


def test_a_graph_that_differs_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(graph, "onnx_runner", lambda content: lambda x: {"probs": x, "members": x})
    monkeypatch.setattr(graph, "onnx_model", lambda *_: onnx.ModelProto())
    ens = ds.Ensemble(lambda: nn.Linear(3, 3), members=1)
    with pytest.raises(ValueError, match=r"off by .* in probs; nothing was written"):
        ds.export.to_onnx(ens, torch.ones(3, 3), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []
