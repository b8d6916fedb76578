"""Data of an ldr cell: what it trains on, what it is tested on, and what is unknown to it.

Four kinds of inputs are kept apart: training data (with a planted share from elsewhere, if asked),
validation data of the same distribution, *proxies* made of them that stand in for the unknown when
hyperparameters are chosen, and the sets on which detection is tested. Disagreement data for A2D
and DivDis come from rows that are never tested on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from dissensus.data import (
    Data,
    FeatureStore,
    corrupt_mixture,
    data_places,
    is_store,
    load,
    load_ood,
)
from dissensus.data.strangers import STRANGERS
from dissensus.detection import MemberFeatures
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.training import fit
from reproductions.study import Cell

Split = tuple[Tensor, Tensor]
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class StudyData:
    """``unknown`` are the sets of detection, with labels where the classes are those of training.

    ``proxies`` are the unknown inputs of validation by family, ``disagreement`` unlabelled sets by
    name, ``planted`` marks the training rows that come from elsewhere, ``groups`` those of the test
    rows.
    """

    train: Split
    val: Split
    test: Split
    proxies: Mapping[str, Tensor]
    unknown: Mapping[str, tuple[Tensor, Tensor | None]]
    disagreement: Mapping[str, Tensor]
    outputs: int
    normalize: Normalize | None = None
    planted: Tensor | None = None
    groups: Tensor | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train[0].shape[1:])

    def through(self, change: Callable[[Tensor], Tensor]) -> StudyData:
        """The same rows with ``change`` made to all inputs."""

        def split(pair: Split) -> Split:
            return change(pair[0]), pair[1]

        return replace(
            self,
            train=split(self.train),
            val=split(self.val),
            test=split(self.test),
            proxies={name: change(x) for name, x in self.proxies.items()},
            unknown={name: (change(x), y) for name, (x, y) in self.unknown.items()},
            disagreement={name: change(x) for name, x in self.disagreement.items()},
        )


def load_data(cell: Cell) -> StudyData:
    """The data that ``cell`` names; cells of one seed share their rows."""
    data = _source(cell["data"], cell["train"], cell["val"], cell["test"], cell["seed"])
    if cell["planted"]:
        data = _plant(data, cell["planted"], cell["planted_labels"], cell["seed"])
    return data


@lru_cache(maxsize=2)  # cells of one seed follow each other
def _source(name: str, train: int, val: int, test: int, seed: int) -> StudyData:
    return SOURCES[name](train, val, test, seed) if name in SOURCES else _store(name)


def mixed(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Each input averaged with one of another class: unlike any, and made of what is at hand.

    A stand-in for unknown inputs that needs no other data set, for choosing hyperparameters.

    >>> x = torch.tensor([[0.0], [2.0], [4.0]])
    >>> mixed(x, torch.tensor([0, 1, 1]), seed=0).flatten().tolist() in ([1.0, 1.0, 2.0],
    ...                                                                  [2.0, 1.0, 2.0])
    True
    """
    generator = torch.Generator().manual_seed(seed)
    others = []
    for label in y.tolist():
        choices = (y != label).nonzero().flatten()
        others.append(choices[torch.randint(len(choices), (1,), generator=generator)])
    return (x + x[torch.cat(others)]) / 2


def make_proxies(x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    """Stand-ins for unknown inputs made of ``x``: mixed ones, and each family of strangers.

    Images give mosaics and phase noise, feature rows permuted columns.
    """
    families = ("mosaic", "phase") if x.ndim == 4 else ("permute",)
    generator = torch.Generator().manual_seed(seed)
    strangers = {family: STRANGERS[family](x, generator) for family in families}
    return {"mixed": mixed(x, y, seed), **strangers}


# ---- sources ------------------------------------------------------------------------------------


def _features(train: int, val: int, test: int, seed: int) -> StudyData:
    """Heads on frozen features (200 classes): the paper's own kind of task, on a small scale.

    The first half of the SVHN and CIFAR-10 rows is disagreement data, the second half is tested on.
    """
    data = load("features_effnetlite0", seed=seed, val=val)
    unknown = {name: data.extra[name] for name in ("corrupt1", "corrupt5")}
    halves = {name: data.extra[name][0].tensor_split(2) for name in ("svhn", "cifar10")}
    unknown |= {name: (half[1], None) for name, half in halves.items()}
    return StudyData(
        _first(data.train, train),
        data.val,
        _first(data.test, test),
        make_proxies(*data.val, seed),
        unknown,
        {name: half[0] for name, half in halves.items()},
        data.outputs,
    )


def _images(name: str, train: int, val: int, test: int, seed: int) -> StudyData:
    """MNIST or Fashion-MNIST against corruptions of itself, KMNIST, and the other of the two."""
    data = _load(name, train, val, test, seed)
    shape = data.input_shape
    other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[name]
    kmnist = load_ood("kmnist", input_shape=shape)
    strangers = {
        "kmnist": kmnist[len(kmnist) // 2 :][:test],
        other: load_ood(other, input_shape=shape, limit=test, seed=seed),
    }
    disagreement = {
        "svhn": load_ood("svhn", input_shape=shape, limit=2000, seed=seed),
        "kmnist": kmnist[: len(kmnist) // 2],
    }
    return _from_images(data, strangers, disagreement, seed)


def _digits(train: int, val: int, test: int, seed: int) -> StudyData:
    """The embedded digits against corruptions, negatives and digits on their side; for tests."""
    data = _load("digits", train, val, test, seed)
    x = data.test[0]
    strangers = {"negative": 1 - x, "turned": x.rot90(1, (2, 3))}
    disagreement = {"turned": data.val[0].rot90(3, (2, 3)), "negative": 1 - data.val[0]}
    return _from_images(data, strangers, disagreement, seed)


def _from_images(
    data: Data, strangers: Mapping[str, Tensor], disagreement: Mapping[str, Tensor], seed: int
) -> StudyData:
    x, y = data.test
    unknown: dict[str, tuple[Tensor, Tensor | None]] = {
        f"corrupt{severity}": (corrupt_mixture(x, severity, seed), y) for severity in (1, 5)
    }
    unknown |= {name: (images, None) for name, images in strangers.items()}
    pixels = data.train[0]
    proxies = make_proxies(*data.val, seed)
    normalize = ((float(pixels.mean()),), (float(pixels.std()),))
    parts = (data.train, data.val, data.test)
    study = StudyData(*parts, proxies, unknown, disagreement, data.outputs, normalize)
    # Pixels before channels is what convolutions on a CPU are fastest with.
    return study.through(lambda x: x.contiguous(memory_format=torch.channels_last))


def _backbone(train: int, val: int, test: int, seed: int) -> StudyData:
    """Features of a network of our own: Fashion-MNIST through the CNN of collusion, frozen.

    As ResNet-18 in the paper (Appendix A.7), the backbone was trained on the training data; its 50
    features before the last layer are standardised by those of the training rows.
    """
    images = _source("fashion_mnist", train, val, test, seed)
    make = make_factory(
        "cnn", images.input_shape, images.outputs, normalize=images.normalize, dropout=0.0
    )
    ens = Ensemble(make, members=1, seed=seed)
    fit(ens, images.train, epochs=8, batch_size=128, seed=seed, progress=False)
    features = MemberFeatures(ens)
    seen = features(images.train[0])
    mean, std = seen.mean(0), seen.std(0).clamp_min(1e-3)
    return replace(images.through(lambda x: (features(x) - mean) / std), normalize=None)


def _colored(name: str, train: int, val: int, test: int, seed: int) -> StudyData:
    """Coloured digits, a stand-in for Waterbirds: a class that colour gives away in training.

    The class is whether a digit is 5 or more; 95% of the training digits of class 0 are red and of
    class 1 green, while validation and test digits have either colour in each class. Groups are
    ``2 · class + colour``; the validation digits are disagreement data, as in the paper.
    """
    data = _load(name, train, val, test, seed)
    seen = _colour(data.train, 0.95, seed)
    validation, tested = _colour(data.val, 0.5, seed + 1), _colour(data.test, 0.5, seed + 2)
    mean, std = float(seen[0].mean()), float(seen[0].std())
    return StudyData(
        seen[:2],
        validation[:2],
        tested[:2],
        make_proxies(*validation[:2], seed),
        {},
        {"val": validation[0]},
        2,
        ((mean, mean), (std, std)),
        groups=tested[2],
    )


def _colour(split: Split, share: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Digits in one of two colour channels (28 pixels halved), their class, and their group."""
    generator = torch.Generator().manual_seed(1000 + seed)
    pixels = functional.avg_pool2d(split[0], 2) if split[0].shape[-1] > 14 else split[0]
    label = (split[1] >= 5).long()
    usual = torch.rand(len(label), generator=generator) < share
    colour = torch.where(usual, label, 1 - label)
    x = torch.zeros(len(label), 2, *pixels.shape[2:])
    x[torch.arange(len(label)), colour] = pixels[:, 0]
    return x, label, 2 * label + colour


def _store(name: str) -> StudyData:
    """Features that ``dissensus features`` made; the training rows stay on disk.

    Its extra parts are the unknown sets, but for those that A2D and DivDis disagree on.
    """
    places = [place / name for place in data_places() if is_store(place / name)]
    if not places:
        raise ValueError(
            f"there are no features {name!r} where DISSENSUS_DATA says; make them with `dissensus "
            f"features --backbone timm:deit3_base_patch16_224.fb_in22k_ft_in1k --data imagenet/ "
            "--ood corrupt:1 --ood corrupt:5 --ood inaturalist/ --ood openimages/ "
            f"--ood imagenet-r/ --ood imagenet-a/ --out DIR/{name}`"
        )
    store = FeatureStore(places[0])
    data = store.data()

    def labelled(name: str) -> Split:
        x, y = store.parts[name]
        assert y is not None  # a store's val and test are labelled
        return x[:], y

    extra = {name: (x[:], y) for name, (x, y) in store.parts.items() if name in data.extra}
    return StudyData(
        data.train,
        labelled("val"),
        labelled("test"),
        make_proxies(*labelled("val"), seed=0),
        {name: part for name, part in extra.items() if name not in _DISAGREEMENT},
        {name: part[0] for name, part in extra.items() if name in _DISAGREEMENT},
        data.outputs,
    )


_DISAGREEMENT = ("imagenet-r", "imagenet-a")

#: Every source by name: ``source(train, val, test, seed) -> StudyData``, sizes in rows. Any other
#: name is that of a folder of features.
SOURCES: dict[str, Callable[[int, int, int, int], StudyData]] = {
    "features": _features,
    "fashion_mnist": partial(_images, "fashion_mnist"),
    "mnist": partial(_images, "mnist"),
    "fashion_features": _backbone,
    "colored_mnist": partial(_colored, "mnist"),
    "colored_digits": partial(_colored, "digits"),
    "digits": _digits,
}


# ---- planting -----------------------------------------------------------------------------------


def _plant(data: StudyData, share: float, labels: str, seed: int) -> StudyData:
    """Training data from ``(1 − ε) P + ε Q`` (Section A.4.1): rows replaced by ones from Q.

    Q is the second disagreement set (KMNIST for images), of rows that are never tested on. Its
    ``labels`` are drawn at random (``"random"``) or all the same (``"one"``).
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = data.train[0].clone(), data.train[1].clone()
    strangers = list(data.disagreement.values())[-1]
    count = round(share * len(x))
    if not 0 < count <= len(strangers):
        raise ValueError(f"planted must give 1 to {len(strangers)} rows, got {count}")
    rows = torch.randperm(len(x), generator=generator)[:count]
    x[rows] = strangers[torch.randperm(len(strangers), generator=generator)[:count]]
    drawn = torch.randint(data.outputs, (count,), generator=generator)
    y[rows] = drawn if labels == "random" else torch.zeros_like(drawn)
    planted = torch.zeros(len(x), dtype=torch.bool)
    planted[rows] = True
    return replace(data, train=(x, y), planted=planted)


# ---- rows ---------------------------------------------------------------------------------------


def _load(name: str, train: int, val: int, test: int, seed: int) -> Data:
    """Images and their labels; the digits of scikit-learn have no test part of their own."""
    if name != "digits":
        return load(name, seed=seed, limit=train + val, val=val, test_limit=test)
    data = load(name, seed=seed, val=val, test=test)
    return replace(data, train=_first(data.train, train), rows={})


def _first(split: Split, rows: int) -> Split:
    return split[0][:rows], split[1][:rows]
