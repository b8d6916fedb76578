"""Folders of pictures, read as they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.data.folder import IMAGE_SUFFIXES, read_picture
from dissensus.data.images import to_unit

__all__ = ["PictureRows"]


class PictureRows:
    """All pictures below a folder as ``[rows, *input_shape]`` in [0, 1], read by slices.

    Each is scaled and cut to its centre as :class:`~dissensus.data.ImageFolder` does, then brought
    to the number of channels that is wanted. Any layout will do.
    """

    def __init__(self, root: str | Path, input_shape: Sequence[int]) -> None:
        self.root, self.input_shape = Path(root), tuple(input_shape)
        self.files = sorted(
            file for file in self.root.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES
        )
        if not self.files:
            raise ValueError(
                f"{self.root} holds no pictures; they end in {', '.join(sorted(IMAGE_SUFFIXES))}"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice | Tensor, /) -> Tensor:
        files = self.files[index] if isinstance(index, slice) else [self.files[i] for i in index]
        size = max(self.input_shape[1:])
        pixels = np.stack([read_picture(file, size).transpose(2, 0, 1) for file in files])
        return fit_images(to_unit(pixels), self.input_shape)

    def labels(self, classes: Sequence[str]) -> Tensor | None:
        """The classes by the first folder of each path; None unless all are among ``classes``."""
        number = {name: index for index, name in enumerate(classes)}
        folders = [file.relative_to(self.root).parts[0] for file in self.files]
        if not all(folder in number for folder in folders):
            return None
        return torch.tensor([number[folder] for folder in folders])
