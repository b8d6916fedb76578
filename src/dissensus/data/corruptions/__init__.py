"""Fifteen kinds of image corruption at five severities: covariate shift from any image set.

The kinds and their order are those of the common-corruptions benchmark (Hendrycks and Dietterich,
2019). They are written on tensors, in the spirit of the benchmark and not to its bits:
lengths scale with the image so that 8 × 8 digits and 224 × 224 photographs suffer alike; frost and
snow are procedural, not photographed textures; JPEG is the block transform and quantisation
without chroma subsampling or entropy coding. Numbers measured with them are not comparable with
published numbers on the official corrupted sets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from dissensus.data.corruptions import kinds
from dissensus.specs import check_name

__all__ = ["CORRUPTIONS", "corrupt", "corrupt_mixture", "parse_corruption"]

#: Every kind by name: ``kind(x, severity, generator) -> x``; images in [0, 1], severity 1 to 5.
CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "gaussian_noise": kinds.gaussian_noise,
    "shot_noise": kinds.shot_noise,
    "impulse_noise": kinds.impulse_noise,
    "defocus_blur": kinds.defocus_blur,
    "glass_blur": kinds.glass_blur,
    "motion_blur": kinds.motion_blur,
    "zoom_blur": kinds.zoom_blur,
    "snow": kinds.snow,
    "frost": kinds.frost,
    "fog": kinds.fog,
    "brightness": kinds.brightness,
    "contrast": kinds.contrast,
    "elastic_transform": kinds.elastic_transform,
    "pixelate": kinds.pixelate,
    "jpeg_compression": kinds.jpeg_compression,
}

_AT_ONCE = 512  # images; bounds the memory for displacement fields and spectra


def corrupt(x: Tensor, kind: str, severity: int, seed: int = 0) -> Tensor:
    """Images ``[rows, channels, height, width]`` in [0, 1], corrupted; the same for the same seed.

    The random fields do not depend on the severity, so that a picture gets worse from one level to
    the next instead of being drawn again.

    >>> x = torch.full((2, 1, 8, 8), 0.5)
    >>> [round(float((corrupt(x, "contrast", s) - x).abs().mean()), 3) for s in (1, 5)]
    [0.0, 0.0]
    >>> [round(float((corrupt(x, "brightness", s) - x).abs().mean()), 3) for s in (1, 3, 5)]
    [0.1, 0.3, 0.5]
    """
    _check(x, severity)
    _check_kind(kind)
    # Kinds draw from different streams, so that a mixture does not repeat one noise field.
    generator = torch.Generator().manual_seed(seed * 100 + list(CORRUPTIONS).index(kind))
    parts = [CORRUPTIONS[kind](part, severity, generator) for part in x.split(_AT_ONCE)]
    return torch.cat(parts).clamp(0, 1).to(x.dtype)


def parse_corruption(text: str) -> tuple[str | None, int]:
    """``corrupt:SEVERITY`` or ``corrupt:KIND:SEVERITY`` as kind (None for all mixed) and severity.

    >>> parse_corruption("corrupt:5"), parse_corruption("corrupt:contrast:3")
    ((None, 5), ('contrast', 3))
    """
    first, _, rest = text.partition(":")
    kind, _, severity = rest.rpartition(":")
    if first != "corrupt" or not severity.isdecimal():
        raise ValueError(f"expected corrupt:SEVERITY or corrupt:KIND:SEVERITY, got {text!r}")
    if kind:
        _check_kind(kind)
    _check_severity(int(severity))
    return kind or None, int(severity)


def corrupt_mixture(x: Tensor, severity: int, seed: int = 0) -> Tensor:
    """All kinds in one set: image ``i`` gets kind ``i % 15``, in the order of the dict."""
    _check(x, severity)
    out = torch.empty_like(x)
    for number, kind in enumerate(CORRUPTIONS):
        chosen = slice(number, None, len(CORRUPTIONS))
        if len(x[chosen]):
            out[chosen] = corrupt(x[chosen], kind, severity, seed)
    return out


def _check(x: Tensor, severity: int) -> None:
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(
            "images must be floating point [rows, channels, height, width], got "
            f"{x.dtype} {tuple(x.shape)}"
        )
    if 0 in x.shape or min(x.shape[2:]) < 8:
        raise ValueError(f"images must be at least 8 × 8, and one or more, got {tuple(x.shape)}")
    low, high = (float(value) for value in torch.aminmax(x))
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; divide bytes by "
            "255, and put normalisation into the model"
        )
    _check_severity(severity)


def _check_severity(severity: int) -> None:
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")


def _check_kind(kind: str) -> None:
    check_name(kind, CORRUPTIONS, "corruption")
