"""A tuned detector: scores of a copy that disagrees on strangers, predictions as they were."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.detection import combine_tails
from dissensus.scores import SCORES
from dissensus.tools.files import read_safetensors

QUIET = {"progress": False, "optimizer": "adam:lr=0.01", "batch_size": 48}
SHORT = {**QUIET, "epochs": 2}


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def rows(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Three classes on a line through four equal columns: a permuted row lies off that line."""
    y = torch.arange(count) % 3
    noise = 0.1 * torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return (y[:, None] - 1.0).expand(count, 4) + noise, y


UNKNOWN = torch.tensor([[-1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])


@pytest.fixture(scope="module")
def ens() -> ds.Ensemble:
    ens = ds.Ensemble(make, members=3)
    ds.fit(ens, rows(240), epochs=10, **QUIET)
    return ens


def state(ens: ds.Ensemble) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in ens.state_dict().values()])


def test_the_copy_disagrees_on_the_unknown_and_the_ensemble_stays(ens: ds.Ensemble) -> None:
    before, objective = state(ens), ens.objective
    plain = ds.Detector(ens).fit(rows(60, 2))
    tuned = ds.Detector(ens).tune(rows(240), epochs=20, **QUIET).fit(rows(60, 2))
    assert torch.equal(state(ens), before)
    assert ens.objective == objective
    assert bool((tuned.score(UNKNOWN) > plain.score(UNKNOWN) + 0.1).all())
    assert bool(tuned.is_ood(UNKNOWN).all())
    assert float(tuned.is_ood(rows(60, 3)[0]).double().mean()) < 0.2
    torch.testing.assert_close(
        tuned.score(UNKNOWN), SCORES["mutual_information"](tuned.tuned(UNKNOWN).detach())
    )
    assert tuned.tuning == {"objective": "a2d", "strangers": "strangers", "epochs": 20}


def test_regressors_are_repelled_on_strangers() -> None:
    """Targets in units of hundreds: the copy spreads by as much on unknown inputs."""
    ens = ds.Ensemble(lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)), 3,
                      combine="mean")  # fmt: skip
    x, y = rows(240)
    targets = 100.0 * y[:, None]
    ds.fit(ens, (x, targets), "independent:loss=mse", epochs=30, **QUIET)
    plain = ds.Detector(ens).fit(x)
    tuned = ds.Detector(ens).tune((x, targets), epochs=30, **QUIET).fit(x)
    assert (tuned.score_name, tuned.tuning["objective"]) == ("variance", "repulsion:scale=81.65")
    assert bool((tuned.score(UNKNOWN) > 4 * plain.score(UNKNOWN)).all())
    assert float(tuned.score(UNKNOWN).sqrt().max()) < 300  # bounded: no further than it has to be
    assert bool(tuned.is_ood(UNKNOWN).all())


def test_a_tuned_detector_comes_back_from_its_files(ens: ds.Ensemble, tmp_path: Path) -> None:
    path = tmp_path / "detector.json"
    detector = ds.Detector(ens, "combined:distance=vim").tune(rows(240), **SHORT)
    detector.fit(rows(60, 2), train=rows(240)).save(path)
    names = {"detector.json", "detector.safetensors", "detector.tuned.safetensors"}
    assert {file.name for file in tmp_path.iterdir()} == names
    twin = ds.Detector.load(path, ens)
    assert torch.equal(twin.score(UNKNOWN), detector.score(UNKNOWN))
    assert (twin.tuning, repr(twin)) == (detector.tuning, repr(detector))
    assert json.loads(path.read_text())["tuned"]["objective"] == "a2d"
    file = tmp_path / "detector.tuned.safetensors"
    with pytest.raises(ValueError, match="belongs to another ensemble"):
        ds.Detector.load(path, ds.Ensemble(lambda: nn.Linear(4, 3), members=3))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"detector\.tuned\.safetensors do not belong together"):
        ds.Detector.load(path, ens)


def test_distances_are_those_of_the_ensemble(ens: ds.Ensemble) -> None:
    """``combined`` takes outputs of the copy and features of the ensemble."""
    val, train = rows(60, 2), rows(240)
    both = ds.Detector(ens, "combined:distance=vim").tune(train, **SHORT).fit(val, train=train)
    parts = [
        ds.Detector(ens).tune(train, **SHORT).fit(val),
        ds.Detector(ens, "vim").fit(val, train=train),
    ]
    scales = tuple(ds.detection.TailScale.fit(part.score(val)) for part in parts)
    expected = combine_tails([part.score(UNKNOWN) for part in parts], scales)
    torch.testing.assert_close(both.score(UNKNOWN), expected, rtol=1e-4, atol=1e-4)


def test_a_backbone_is_shared_and_not_saved(tmp_path: Path) -> None:
    ens = ds.Ensemble.on_features(nn.Linear(4, 8), lambda: nn.Linear(8, 3), members=2)
    detector = ds.Detector(ens).tune(rows(48), **SHORT).fit(rows(60, 2))
    assert detector.tuned.backbone is ens.backbone
    detector.save(tmp_path / "a.json")
    tensors, _ = read_safetensors(tmp_path / "a.tuned.safetensors")
    assert not any(name.startswith("backbone") for name in tensors)
    twin = ds.Detector.load(tmp_path / "a.json", ens)
    assert torch.equal(twin.score(UNKNOWN), detector.score(UNKNOWN))


def test_the_default_score_is_that_of_the_tuned_members(ens: ds.Ensemble) -> None:
    trained = ds.Ensemble(make, members=3)
    trained.objective = "ldr"
    detector = ds.Detector(trained)
    assert detector.score_name == "energy"
    assert detector.tune(rows(48), **SHORT).score_name == "mutual_information"


def test_what_cannot_be_tuned_says_why(ens: ds.Ensemble) -> None:
    with pytest.raises(ValueError, match="vim is a score of features, which tuning does not chan"):
        ds.Detector(ens, "vim").tune(rows(48))
    with pytest.raises(ValueError, match="the members of an Ensemble, got function"):
        ds.Detector(lambda x: x[None], "pds").tune(rows(48))
    with pytest.raises(ValueError, match="needs at least 2; there is 1"):
        ds.Detector(ens[:1]).tune(rows(48))
    with pytest.raises(ValueError, match="members that return logits, not probs"):
        ds.Detector(ens, "pds", space="probs").tune(rows(48))
    with pytest.raises(ValueError, match="no threshold yet"):
        ds.Detector(ens).fit(rows(48)).tune(rows(48), **SHORT).is_ood(UNKNOWN)
