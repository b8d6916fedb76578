"""Adversarial examples on disk, beside what they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dissensus.files import replace_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.robustness.evaluation import Robustness

__all__ = ["save_examples"]


def save_examples(found: Robustness, path: str | Path) -> None:
    """Write the changed inputs of every attack to ``path``, ``.npz`` or ``.safetensors``.

    ``x`` and ``y`` are inputs and labels as ``dissensus predict`` reads them: each example as the
    first attack that broke it made it, and as it was where none did; ``broken_by`` ``[batch]`` is
    that attack, or −1. ``original`` are the inputs before, ``adversarial`` ``[attacks, batch, …]``
    all results and ``predictions`` ``[attacks, batch]`` what the ensemble makes of them.
    ``attacks`` names the attacks: an array of text in ``.npz``, a JSON list in the metadata of
    ``.safetensors``.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"adversarial examples go to .npz or .safetensors, got {path.name}")
    tensors, names = _tensors(found), [row.label for row in found.rows]
    if path.suffix == ".npz":
        import numpy as np

        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays["attacks"] = np.array(names)

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(file, **arrays)

    else:
        from safetensors.torch import save_file

        def write(part: Path) -> None:
            save_file(tensors, part, metadata={"attacks": json.dumps(names)})

    replace_atomically(path, write)


def _tensors(found: Robustness) -> dict[str, Tensor]:
    original, by = found.inputs.detach().cpu(), found.breaker
    adversarial = torch.stack([row.outcome.adversarial.cpu() for row in found.rows])
    place = torch.arange(len(by))
    worst = torch.where(
        (by >= 0).reshape(-1, *[1] * (original.ndim - 1)),
        adversarial[by.clamp_min(0), place].to(original.dtype),
        original,
    )
    return {
        "x": worst.contiguous(),
        "y": found.rows[0].outcome.labels.contiguous(),
        "broken_by": by.contiguous(),
        "original": original.contiguous(),
        "adversarial": adversarial.contiguous(),
        "predictions": torch.stack([row.outcome.predictions for row in found.rows]),
    }
