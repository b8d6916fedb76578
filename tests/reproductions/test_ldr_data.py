"""The data of the ldr studies: what is mixed, planted and coloured, and what is kept apart."""

from pathlib import Path

import pytest
import torch

from dissensus.data import FeatureWriter
from reproductions.cells import make_cell
from reproductions.ldr.contenders import PAPER, SMOKE, run_cell
from reproductions.ldr.data import StudyData, load_data, make_proxies, mixed


def smoke(**changes: object) -> StudyData:
    return load_data(make_cell("x", SMOKE, **changes))


def _rows(x: torch.Tensor) -> list[list[float]]:
    return x.flatten(1).tolist()  # type: ignore[no-any-return]


def test_mixed_inputs_are_means_of_two_classes() -> None:
    y = torch.arange(12) % 3
    x = torch.nn.functional.one_hot(y).double()
    found = mixed(x, y, seed=1)
    assert (found.sort(-1).values == torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)).all()
    assert torch.equal(found, mixed(x, y, seed=1))
    own = found[torch.arange(12), y]
    assert (own == 0.5).all()


def test_proxies_are_made_of_the_values_at_hand() -> None:
    """Columns keep their values, mosaics their pixels; no row stays as it was."""
    random = torch.Generator().manual_seed(0)
    rows, labels = torch.rand(40, 5, generator=random), torch.arange(40) % 4
    found = make_proxies(rows, labels, seed=1)
    assert list(found) == ["mixed", "permute"]
    assert torch.equal(found["permute"].sort(0).values, rows.sort(0).values)
    assert not (found["permute"] == rows).all(1).any()
    images = torch.rand(40, 1, 8, 8, generator=random)
    found = make_proxies(images, labels, seed=1)
    assert list(found) == ["mixed", "mosaic", "phase"]
    assert set(found["mosaic"].flatten().tolist()) <= set(images.flatten().tolist())


def test_parts_of_a_setting_do_not_share_images() -> None:
    data = smoke()
    parts = [data.train[0], data.val[0], data.test[0]]
    rows = torch.cat([part.flatten(1) for part in parts])
    assert len(rows.unique(dim=0)) == len(rows)
    assert len(data.train[0]) == SMOKE["train"]
    for unlabelled in data.disagreement.values():
        tested = {tuple(x) for images, _ in data.unknown.values() for x in _rows(images)}
        assert not tested & {tuple(x) for x in _rows(unlabelled)}


def test_planted_rows_come_from_elsewhere_with_random_labels() -> None:
    plain, data = smoke(), smoke(planted=0.05)
    planted = data.planted
    assert planted is not None
    assert int(planted.sum()) == round(0.05 * SMOKE["train"])
    assert torch.equal(data.train[0][~planted], plain.train[0][~planted])
    assert torch.equal(data.train[1][~planted], plain.train[1][~planted])
    source = {tuple(x.flatten().tolist()) for x in list(data.disagreement.values())[-1]}
    assert all(tuple(x.flatten().tolist()) in source for x in data.train[0][planted])
    assert len(data.train[1][planted].unique()) > 1


def test_a_share_that_cannot_be_planted_is_refused() -> None:
    with pytest.raises(ValueError, match="planted must give 1 to"):
        smoke(planted=0.9)


@pytest.mark.slow
def test_the_papers_scale_trains_on_features_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = smoke()
    with FeatureWriter(tmp_path / "imagenet", (64,), classes=[str(i) for i in range(10)]) as writer:
        for name in ("train", "val", "test"):
            x, y = getattr(plain, name)
            writer.add(name, x.flatten(1).numpy(), y.numpy())
        writer.add(
            "corrupt1", plain.unknown["corrupt1"][0].flatten(1).numpy(), plain.test[1].numpy()
        )
        writer.add("inaturalist", plain.unknown["negative"][0].flatten(1).numpy())
        writer.add("imagenet-r", plain.disagreement["turned"].flatten(1).numpy())
    with pytest.raises(ValueError, match="dissensus features"):
        load_data(make_cell("x", PAPER))
    monkeypatch.setenv("DISSENSUS_DATA", str(tmp_path))
    for method in ("ldr", "a2d", "two-stage"):
        cell = make_cell(
            "x", PAPER, method=method, epochs=8, batch_size=16, members=3, strength=0.1
        )
        result = run_cell(cell)
        assert list(result["auroc"]) == ["corrupt1", "inaturalist"]
        assert result["parts"]["test"]["accuracy"] > 0.5


def test_colour_gives_the_class_away_in_training_only() -> None:
    data = smoke(data="colored_digits", train=600, val=200, test=400, disagreement="val")

    def usual(x: torch.Tensor, y: torch.Tensor) -> float:
        colour = x.flatten(2).sum(-1).argmax(-1)
        return float((colour == y).double().mean())

    assert usual(*data.train) == pytest.approx(0.95, abs=0.03)
    assert usual(*data.val) == pytest.approx(0.5, abs=0.12)
    assert usual(*data.test) == pytest.approx(0.5, abs=0.1)
    x, y = data.test
    assert data.groups is not None
    assert torch.equal(data.groups // 2, y)
    assert torch.equal(data.groups % 2, x.flatten(2).sum(-1).argmax(-1))
