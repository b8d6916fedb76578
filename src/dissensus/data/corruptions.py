"""Fifteen kinds of image corruption at five severities: covariate shift from any image set.

The kinds and their order are those of the common-corruptions benchmark (Hendrycks and Dietterich,
2019). They are written on tensors, in the spirit of the benchmark and not to its bits:
lengths scale with the image so that 8 × 8 digits and 224 × 224 photographs suffer alike; frost and
snow are procedural, not photographed textures; JPEG is the block transform and quantisation
without chroma subsampling or entropy coding. Numbers measured with them are not comparable with
published numbers on the official corrupted sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from dissensus.data.augmentations import check_images
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_integer, check_name

# ---- fields: random numbers, smoothing, warping, clouds ------------------------------------------


def unit(x: Tensor) -> float:
    """One pixel of a 32 × 32 image, in pixels of this one; never below half a pixel."""
    return max(min(x.shape[-2:]), 16) / 32


def normal(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    """Standard normal numbers drawn on the CPU, so that every device sees the same."""
    return torch.randn(shape, generator=generator).to(like)


def uniform(shape: tuple[int, ...], generator: Generator, like: Tensor) -> Tensor:
    """Numbers uniform in [0, 1), drawn on the CPU."""
    return torch.rand(shape, generator=generator).to(like)


def smooth(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of every channel, border pixels repeated."""
    reach = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    flat = x.reshape(-1, 1, *x.shape[-2:])
    flat = pad(flat, (reach,) * 4, mode="replicate")
    flat = conv2d(conv2d(flat, kernel[None, None, :, None]), kernel[None, None, None, :])
    return flat.reshape(x.shape)


def warp(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """``out[n, :, i, j] = x[n, :, i + down, j + right]``, bilinear; borders are mirrored.

    ``down`` and ``right`` are in pixels and broadcast to ``[batch, height, width]``.
    """
    batch, _, height, width = x.shape
    rows = torch.arange(height, device=x.device, dtype=x.dtype)[None, :, None] + down
    columns = torch.arange(width, device=x.device, dtype=x.dtype)[None, None, :] + right
    shape = (batch, height, width)
    grid = torch.stack(
        [
            ((2 * columns + 1) / width - 1).expand(shape),
            ((2 * rows + 1) / height - 1).expand(shape),
        ],
        -1,
    )
    return grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def streak(x: Tensor, length: float, angle: Tensor) -> Tensor:
    """Mean of ``x`` along a line of ``length`` pixels in direction ``angle`` ``[batch]``."""
    count = 2 * math.ceil(length) + 1
    sin, cos = angle.sin()[:, None, None], angle.cos()[:, None, None]
    total = torch.zeros_like(x)
    for step in range(count):
        at = length * (step / (count - 1) - 0.5)
        total = total + warp(x, at * sin, at * cos)
    return total / count


def clouds(x: Tensor, roughness: float, generator: Generator) -> Tensor:
    """Fractal noise ``[batch, 1, height, width]`` in [0, 1]: white noise with a 1/f^r spectrum."""
    batch, _, height, width = x.shape
    noise = normal((batch, 1, height, width), generator, x).float()
    rows = torch.fft.fftfreq(height, device=x.device)[:, None] * height
    columns = torch.fft.rfftfreq(width, device=x.device)[None] * width
    frequency = (rows**2 + columns**2).sqrt()
    frequency[0, 0] = 1.0
    spectrum = torch.fft.rfft2(noise) / frequency**roughness
    field: Tensor = torch.fft.irfft2(spectrum, s=(height, width)).to(x.dtype)
    low, high = field.amin((-2, -1), keepdim=True), field.amax((-2, -1), keepdim=True)
    scaled: Tensor = (field - low) / (high - low).clamp_min(1e-12)
    return scaled


# ---- noise: of the sensor, of few photons, of broken pixels --------------------------------------


def gaussian_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Normal noise added to every pixel; the levels are its deviation."""
    deviation = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return (x + deviation * normal(tuple(x.shape), generator, x)).clamp(0, 1)


def shot_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Poisson counts of the light; the levels are the photons of a white pixel."""
    photons = (60.0, 25.0, 12.0, 5.0, 3.0)[severity - 1]
    counts = torch.poisson((x * photons).cpu().float(), generator=generator)
    return (counts.to(x) / photons).clamp(0, 1)


def impulse_noise(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Single values turned black or white; the levels are their share."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    hit = uniform(tuple(x.shape), generator, x) < share
    white = (uniform(tuple(x.shape), generator, x) < 0.5).to(x)
    return torch.where(hit, white, x)


# ---- blur: out of focus, through glass, in motion, zooming ---------------------------------------


def defocus_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Convolution with a disc; the levels are its radius."""
    radius = (1.2, 1.6, 2.0, 2.5, 3.1)[severity - 1] * unit(x)
    kernel = _disc(radius, x)
    reach = kernel.shape[-1] // 2
    flat = pad(x.reshape(-1, 1, *x.shape[-2:]), (reach,) * 4, mode="replicate")
    return conv2d(flat, kernel).reshape(x.shape)


def _disc(radius: float, like: Tensor, fine: int = 9) -> Tensor:
    """A disc of any radius with soft edges: the covered part of each pixel, by sub-sampling."""
    reach = max(1, math.ceil(radius))
    side = (2 * reach + 1) * fine
    place = (torch.arange(side, device=like.device, dtype=like.dtype) + 0.5) / fine - reach - 0.5
    inside = (place[:, None] ** 2 + place[None] ** 2 <= radius**2).to(like)
    kernel = inside.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).sum((1, 3))
    return (kernel / kernel.sum())[None, None]


def glass_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Every pixel taken from a random near one, then a slight blur; the levels are the reach."""
    reach = (0.7, 1.0, 1.4, 1.9, 2.5)[severity - 1] * unit(x)
    shape = (x.shape[0], *x.shape[-2:])
    down, right = (2 * uniform(shape, generator, x) - 1 for _ in range(2))
    return smooth(warp(x, reach * down, reach * right), 0.3 * reach)


def motion_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The mean along a line in a random direction for each image; the levels are its length."""
    length = (2.5, 3.5, 5.0, 6.5, 8.5)[severity - 1] * unit(x)
    return streak(x, length, math.pi * uniform((x.shape[0],), generator, x))


def zoom_blur(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The mean of pictures enlarged about the centre; the levels are the largest enlargement."""
    largest = (1.12, 1.2, 1.3, 1.42, 1.56)[severity - 1]
    count = 8
    total = torch.zeros_like(x)
    for step in range(count):
        shrink = 1 / (1 + (largest - 1) * step / (count - 1))
        theta = torch.tensor([[shrink, 0, 0], [0, shrink, 0]], device=x.device, dtype=x.dtype)
        grid = affine_grid(theta.expand(x.shape[0], 2, 3), list(x.shape), align_corners=False)
        total = total + grid_sample(x, grid, padding_mode="border", align_corners=False)
    return total / count


# ---- weather, procedural: nothing is taken from photographs --------------------------------------


def snow(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Streaks of falling flakes over a whitened picture; the levels are density and whitening."""
    density, whitening = ((0.02, 0.08), (0.04, 0.13), (0.06, 0.18), (0.09, 0.23), (0.13, 0.28))[
        severity - 1
    ]
    batch, _, height, width = x.shape
    flakes = (uniform((batch, 1, height, width), generator, x) < density).to(x)
    # Wind from either side: 45 to 135 degrees from the horizontal.
    angle = math.pi * (0.25 + 0.5 * uniform((batch,), generator, x))
    length = 3 * unit(x)
    falling = (streak(flakes, length, angle) * max(length, 1.0)).clamp(0, 1)
    return x + (whitening + (1 - whitening) * falling) * (1 - x)


def frost(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Bright ridged crystals that cover the picture; the levels are how opaque they are."""
    opacity = (0.3, 0.45, 0.6, 0.72, 0.85)[severity - 1]
    ridges = 1 - (2 * clouds(x, 1.3, generator) - 1).abs()
    cover = clouds(x, 2.0, generator)
    brightness = 0.6 + 0.4 * ridges
    return x + opacity * (0.3 + 0.7 * cover * ridges) * (brightness - x)


def fog(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Fractal clouds in front of the picture; the levels are their thickness."""
    thickness = (0.4, 0.7, 1.1, 1.6, 2.3)[severity - 1]
    mist = 0.4 + 0.6 * clouds(x, 1.7, generator)
    return (x + thickness * mist) / (1 + thickness)


# ---- exposure, geometry and compression ----------------------------------------------------------


def brightness(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """More value at the same hue and saturation; the levels are added to the brightest channel."""
    added = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    value = x.amax(1, keepdim=True)
    brighter = (value + added).clamp_max(1)
    black = value < 1e-6  # has no hue: becomes grey
    return torch.where(black, brighter, x * brighter / value.clamp_min(1e-6))


def contrast(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Every channel drawn to its mean; the levels are what is left of the contrast."""
    left = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    mean = x.mean((-2, -1), keepdim=True)
    return mean + left * (x - mean)


def elastic_transform(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """A smooth random displacement; the levels are its deviation, for 32 × 32 pixels."""
    amplitude = (0.7, 1.1, 1.6, 2.2, 3.0)[severity - 1] * unit(x)
    fields = normal((2, x.shape[0], *x.shape[-2:]), generator, x)
    fields = smooth(fields, 3 * unit(x))
    fields = fields / fields.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-12)
    return warp(x, amplitude * fields[0], amplitude * fields[1])


def pixelate(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """Fewer, larger pixels; the levels are the share of the side that is left."""
    share = (0.75, 0.6, 0.5, 0.35, 0.25)[severity - 1]
    height, width = x.shape[-2:]
    return _coarsen(height, share, x) @ x @ _coarsen(width, share, x).T


def _coarsen(side: int, share: float, like: Tensor) -> Tensor:
    """The matrix that averages over ``share · side`` equal stretches and spreads them back.

    Both ways by the exact overlap of old and new pixels: with plain nearest neighbours a size that
    does not divide the side distorts more than the next coarser one that does.
    """
    count = max(2, round(side * share))
    edges = torch.linspace(0, side, count + 1, device=like.device, dtype=like.dtype)
    start = torch.arange(side, device=like.device, dtype=like.dtype)
    overlap = torch.minimum(edges[1:, None], start + 1) - torch.maximum(edges[:-1, None], start)
    overlap = overlap.clamp_min(0)
    return overlap.T @ (overlap / overlap.sum(1, keepdim=True))


# The example quantisation tables of the JPEG standard (ITU-T T.81, Annex K).
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# RGB to luminance and two colour differences (ITU-R BT.601).
_TO_YCC = (
    (0.299, 0.587, 0.114),
    (-0.168736, -0.331264, 0.5),
    (0.5, -0.418688, -0.081312),
)


def jpeg_compression(x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The loss of JPEG: 8 × 8 cosine transform, rounding to the quality's steps, and back.

    The levels are qualities. Three channels are taken for RGB; any other number is compressed
    channel by channel as luminance.
    """
    quality = (25, 18, 13, 9, 6)[severity - 1]
    tables = torch.tensor([_LUMINANCE, _CHROMINANCE, _CHROMINANCE], device=x.device, dtype=x.dtype)
    steps = ((tables * 50 / quality + 0.5).floor()).clamp(1, 255)
    if x.shape[1] == 3:
        to = torch.tensor(_TO_YCC, device=x.device, dtype=x.dtype)
        planes = torch.einsum("dc,nchw->ndhw", to, x)
        planes = _quantise(planes - planes.new_tensor([0.5, 0, 0])[:, None, None], steps)
        planes = planes + planes.new_tensor([0.5, 0, 0])[:, None, None]
        return torch.einsum("cd,ndhw->nchw", torch.linalg.inv(to), planes).clamp(0, 1)
    return (_quantise(x - 0.5, steps[:1].expand(x.shape[1], 8, 8)) + 0.5).clamp(0, 1)


def _quantise(planes: Tensor, steps: Tensor) -> Tensor:
    """Round the cosine coefficients of each 8 × 8 block to multiples of ``steps`` (in 1/255)."""
    batch, channels, height, width = planes.shape
    padded = pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate") * 255
    rows, columns = padded.shape[-2] // 8, padded.shape[-1] // 8
    blocks = padded.reshape(batch, channels, rows, 8, columns, 8).transpose(3, 4)
    basis = _cosines(planes)
    steps = steps[:, None, None]
    coefficients = ((basis @ blocks @ basis.T) / steps).round() * steps
    restored = (basis.T @ coefficients @ basis).transpose(3, 4).reshape(padded.shape)
    return restored[..., :height, :width] / 255


def _cosines(like: Tensor) -> Tensor:
    """The orthonormal 8-point cosine transform (DCT-II)."""
    k = torch.arange(8, device=like.device, dtype=like.dtype)
    basis = torch.cos(math.pi / 8 * (k[None] + 0.5) * k[:, None]) / 2
    basis[0] = math.sqrt(1 / 8)
    return basis


# ---- corruption by name --------------------------------------------------------------------------

#: Every kind by name: ``kind(x, severity, generator) -> x``; images in [0, 1], severity 1 to 5.
CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}

_AT_ONCE = 512  # images; bounds the memory for displacement fields and spectra


@guarded
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
    check_name(kind, CORRUPTIONS, "corruption")
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
        check_name(kind, CORRUPTIONS, "corruption")
    check_integer("severity", int(severity), 1, 5)
    return kind or None, int(severity)


@guarded
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
    check_images(x)
    if 0 in x.shape or min(x.shape[2:]) < 8:
        raise ValueError(f"images must be at least 8 × 8, and one or more, got {tuple(x.shape)}")
    low, high = (float(value) for value in torch.aminmax(x))
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images must lie in [0, 1], got values from {low:.4g} to {high:.4g}")
    check_integer("severity", severity, 1, 5)
