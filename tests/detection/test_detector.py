"""A Detector from end to end: fitted, saved, loaded and refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dissensus.detection import (
    Detector,
    Mahalanobis,
    NearestNeighbours,
)
from dissensus.scores import SCORES


class Members(nn.Module):
    """Three small members with layers that behave differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
            for _ in range(3)
        )
        self.largest_batch = 0

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not any(module.training for module in self.modules())
        self.largest_batch = max(self.largest_batch, len(x))
        return torch.stack([net(x) for net in self.nets])


@pytest.fixture
def ens() -> Members:
    return Members()


@pytest.mark.parametrize("score", SCORES)
def test_the_fitted_detector_accepts_enough_of_its_validation_data(
    ens: Members, score: str
) -> None:
    val = torch.randn(203, 4)
    for accept in (0.5, 0.95, 1.0):
        detector = Detector(ens, score=score, batch_size=50).fit(val, accept=accept)
        scores = detector.score(val)
        assert torch.equal(detector.is_ood(val), scores > detector.threshold)
        assert float((~detector.is_ood(val)).double().mean()) >= accept
        assert float((scores < detector.threshold).double().mean()) < accept
        assert (detector.count, detector.accept) == (203, accept)
        assert detector.quantiles["1"] == float(scores.max())
    assert ens.largest_batch == 50
    torch.testing.assert_close(scores, SCORES[score](quiet(ens, val)))


def quiet(ens: Members, x: Tensor) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(ens).eval()(x)


def test_each_submodule_gets_its_own_mode_back(ens: Members) -> None:
    ens.train()
    ens.nets[1].eval()  # a frozen member inside a training ensemble
    before = [module.training for module in ens.modules()]
    Detector(ens).fit(torch.randn(20, 4))
    assert [module.training for module in ens.modules()] == before
    with pytest.raises(RuntimeError):  # and after a failure too
        Detector(ens).score(torch.randn(20, 5))
    assert [module.training for module in ens.modules()] == before


def test_every_form_of_validation_data_gives_the_same_threshold(ens: Members) -> None:
    x, y = torch.randn(60, 4), torch.zeros(60, dtype=torch.long)
    forms = [
        x,
        (x, y),
        DataLoader(TensorDataset(x, y), batch_size=20),
        DataLoader(TensorDataset(x), batch_size=20),
        DataLoader(x, batch_size=20),  # type: ignore[arg-type]
        [x[:20], x[20:40], x[40:]],
        ((part, None) for part in x.split(20)),
    ]
    thresholds = [Detector(ens, batch_size=20).fit(form).threshold for form in forms]
    assert len(set(thresholds)) == 1
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    detector = Detector(ens, batch_size=20).fit(x)
    assert torch.equal(detector.score(loader), detector.score(x))


def test_a_saved_detector_decides_alike(ens: Members, tmp_path: Path) -> None:
    path = tmp_path / "detectors" / "one.json"
    detector = Detector(ens, score="bma").fit(torch.randn(50, 4), accept=0.8)
    detector.save(path)
    twin = Detector.load(path, ens)
    x = torch.cat([torch.randn(100, 4), torch.randn(100, 4) * 9])
    assert torch.equal(twin.is_ood(x), detector.is_ood(x))
    assert (repr(twin), twin.count, twin.quantiles) == (
        repr(detector),
        detector.count,
        detector.quantiles,
    )
    assert json.loads(path.read_text())["format"] == "dissensus.detector/1"


def test_a_score_of_ones_own_is_passed_again_on_loading(ens: Members, tmp_path: Path) -> None:
    def spread(logits: Tensor) -> Tensor:
        return logits.std(0).sum(-1)

    detector = Detector(ens, score=spread).fit(torch.randn(50, 4))
    detector.save(tmp_path / "own.json")
    assert Detector.load(tmp_path / "own.json", ens, score=spread).threshold == detector.threshold
    with pytest.raises(ValueError, match="fitted with a function: pass it as score="):
        Detector.load(tmp_path / "own.json", ens)
    Detector(ens, score="pds").fit(torch.randn(50, 4)).save(tmp_path / "named.json")
    with pytest.raises(ValueError, match="fitted with a named score: leave out score="):
        Detector.load(tmp_path / "named.json", ens, score=spread)


def test_a_temperature_is_part_of_the_saved_score(ens: Members, tmp_path: Path) -> None:
    x = torch.randn(50, 4)
    detector = Detector(ens, "bma", temperature=torch.tensor(2.5)).fit(x)
    plain = Detector(ens, lambda logits: SCORES["bma"](logits / 2.5))
    torch.testing.assert_close(detector.score(x), plain.score(x))
    detector.save(tmp_path / "warm.json")
    assert json.loads((tmp_path / "warm.json").read_text())["score"] == "bma:temperature=2.5"
    assert torch.equal(Detector.load(tmp_path / "warm.json", ens).score(x), detector.score(x))
    each = Detector(ens, "bma", temperature=torch.full((len(ens.nets),), 2.5)).score(x)
    torch.testing.assert_close(each, detector.score(x))


@pytest.mark.parametrize("kind", [Mahalanobis, NearestNeighbours])
def test_a_score_of_features_is_saved_beside_the_threshold(kind: type, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 4, generator=generator), torch.arange(90) % 3

    def features(inputs: Tensor) -> Tensor:
        return torch.cat([inputs, inputs.square()], -1)

    distance = (
        kind.fit(features(x), y)
        if kind is Mahalanobis
        else kind.fit(features(x), k=5, normalize=False)
    )

    def never(inputs: Tensor) -> Tensor:
        raise AssertionError("the ensemble is not needed")

    detector = Detector(never, distance, features=features, batch_size=7).fit(x)
    torch.testing.assert_close(detector.score(x), distance(features(x)))
    assert detector.is_ood(x + 9).all()
    detector.save(tmp_path / "far.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far.json", "far.safetensors"]
    with pytest.raises(ValueError, match="with a function of features: pass it as features="):
        Detector.load(tmp_path / "far.json", never)
    twin = Detector.load(tmp_path / "far.json", never, features=features)
    assert torch.equal(twin.is_ood(x), detector.is_ood(x))
    plain = kind.fit(x, y) if kind is Mahalanobis else kind.fit(x, k=5)
    assert torch.equal(Detector(never, plain).score(x[:, :, None]), plain(x))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read as JSON: it is damaged, cut short"),
        (lambda text: text.replace("detector/1", "detector/9"), "got 'dissensus.detector/9'"),
        (lambda text: "[1, 2]", "not a detector of a known format.* got None"),
        (lambda text: text.replace('"accept"', '"share"'), "bad or missing accept"),
        (lambda text: text.replace('"threshold": ', '"threshold": NaN, "was": '), "the number nan"),
        (lambda text: text.replace("mutual_inf", "mutal_inf"), "does not match its checksum"),
    ],
)
def test_a_spoiled_file_is_refused(
    ens: Members, tmp_path: Path, spoil: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "detector.json"
    Detector(ens).fit(torch.randn(9, 4)).save(path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError, match=message):
        Detector.load(path, ens)
    with pytest.raises(ValueError, match="there is no such file"):
        Detector.load(tmp_path / "none.json", ens)


def test_use_before_fit_says_what_to_do(ens: Members, tmp_path: Path) -> None:
    detector = Detector(ens)
    for use in (detector.is_ood, lambda _: detector.save(tmp_path / "detector.json")):
        with pytest.raises(ValueError, match=r"no threshold yet; call \.fit\(val\) first"):
            use(torch.randn(2, 4))
    assert detector.score(torch.randn(2, 4)).shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "mean_entropi"}, "no score 'mean_entropi'; did you mean 'mean_entropy'?"),
        (
            {"score": "bma:temperature=-1"},
            "greater than 0, got -1",
        ),
        ({"features": abs}, "features= is for a score of features"),
        (
            {"score": NearestNeighbours.fit(torch.ones(2, 2), k=1), "temperature": 2.0},
            "a score of features has no temperature",
        ),
        ({"batch_size": 0}, "batch_size must be a whole number above 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Detector(lambda x: x, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "data", "message"),
    [
        (lambda x: x, torch.zeros(5, 3), r"must be \[members, batch, outputs\], got \(5, 3\)"),
        (lambda x: torch.zeros(5, 2, 3), torch.zeros(5, 3), "a batch of 5, .*members come first"),
        (lambda x: x[None] / 0, torch.ones(5, 3), "must be finite, got 15 NaN or infinite"),
        (lambda x: x[None], [], "the data held no batches"),
        (lambda x: x[None], TensorDataset(torch.zeros(5, 3)), r"pass DataLoader\(data, "),
        (lambda x: x[None], ["text"], r"a tuple \(x, y\) .* got a batch whose x is str"),
    ],
)
def test_bad_outputs_and_data_are_refused(
    run: Callable[[Tensor], Tensor], data: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Detector(run).fit(data)


def test_a_score_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a score must return \[batch\] = \(5,\), got \(1, 5\)"):
        Detector(lambda x: x[None], score=lambda logits: logits.sum(-1)).score(torch.zeros(5, 3))
