"""Small problems to train on, and plain PyTorch to compare with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble

Batches = list[tuple[Tensor, Tensor]]


def blobs(
    examples: int = 96, features: int = 4, classes: int = 3, seed: int = 0, dtype: Any = None
) -> tuple[Tensor, Tensor]:
    """Points of some classes around a centre each, with enough noise to be wrong about."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=torch.Generator().manual_seed(99))
    y = torch.randint(classes, (examples,), generator=generator)
    x = centres[y] + torch.randn(examples, features, generator=generator)
    return x.to(dtype or torch.float32), y


def batches(examples: int = 70, size: int = 16, seed: int = 0, dtype: Any = None) -> Batches:
    """The same as a list of batches, in an order that stays; the last one is smaller."""
    x, y = blobs(examples, seed=seed, dtype=dtype)
    return list(zip(x.split(size), y.split(size), strict=True))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def dense_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and statistics."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rows(ens: Ensemble, member: int) -> dict[str, Tensor]:
    """A copy of all that belongs to one member."""
    return state(ens.member(member))


def plain_training(
    modules: Sequence[nn.Module],
    data: Batches,
    epochs: int,
    make_optimizer: Any,
    factor: Any = lambda time: 1.0,
    clip: float | None = None,
    loss: Any = nn.functional.cross_entropy,
) -> list[Tensor]:
    """Train each module alone; returns each epoch's outputs ``[members, examples, outputs]``."""
    seen = []
    for module in modules:
        module.train()
        optimizer = make_optimizer([p for p in module.parameters() if p.requires_grad])
        base = optimizer.param_groups[0]["lr"]
        outputs = []
        for epoch in range(epochs):
            for number, (x, y) in enumerate(data):
                optimizer.param_groups[0]["lr"] = base * factor(epoch + number / len(data))
                optimizer.zero_grad()
                out = module(x)
                loss(out, y).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                outputs.append(out.detach())
        seen.append(torch.cat(outputs).reshape(epochs, -1, outputs[0].shape[-1]))
    return list(torch.stack(seen, 1))
