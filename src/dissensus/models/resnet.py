"""Residual networks for small images: ResNet-20 (adp), ResNet-18 and -34 (collusion)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from dissensus.models.layers import check_image_shape, norm_layer
from dissensus.tools.specs import check_choice, check_integer


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut (He et al., 2016).

    ``preactivation=False`` is the original basic block, ``relu(shortcut(x) + f(x))``;
    ``True`` puts normalisation and ReLU before each convolution and nothing after the sum.
    Where the size changes, ``shortcut="pad"`` takes every second pixel and pads the new channels
    with zeros (He's option A, no parameters); ``"projection"`` is a strided 1 × 1 convolution
    (option B).
    """

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        *,
        norm: str,
        shortcut: str,
        preactivation: bool,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.preactivation = preactivation
        self.extra = width - channels
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, channels if preactivation else width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, width)
        self.projection: nn.Module | None = None
        if (stride != 1 or self.extra) and shortcut == "projection":
            projection: list[nn.Module] = [nn.Conv2d(channels, width, 1, stride=stride, bias=False)]
            if not preactivation:
                projection.append(norm_layer(norm, width))
            self.projection = nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` in and out."""
        if self.preactivation:
            inner = relu(self.norm1(x))
            beside = self._shortcut(x if self.projection is None else inner)
            residual: Tensor = self.conv2(relu(self.norm2(self.conv1(inner))))
            return beside + residual
        inner = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(self._shortcut(x) + inner)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.projection is not None:
            projected: Tensor = self.projection(x)
            return projected
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.extra:
            x = pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return x


class ResNet(nn.Module):
    """A 3 × 3 stem, stages of :class:`BasicBlock` that double the width, mean, linear layer."""

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        *,
        stages: Sequence[int],
        width: int,
        norm: str,
        shortcut: str,
        preactivation: bool = False,
    ) -> None:
        super().__init__()
        check_image_shape(input_shape, "resnet")
        check_integer("outputs", outputs)
        check_integer("width", width)
        check_choice("resnet", "shortcut", shortcut, ["pad", "projection"])
        self.stem = nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False)
        # The pre-activation network normalises at the end instead of after the stem.
        self.stem_norm = nn.Identity() if preactivation else norm_layer(norm, width)
        blocks: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(stages):
            for index in range(count):
                stride = 2 if stage and not index else 1
                block = BasicBlock(
                    channels,
                    width << stage,
                    stride,
                    norm=norm,
                    shortcut=shortcut,
                    preactivation=preactivation,
                )
                blocks.append(block)
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.last_norm = norm_layer(norm, channels) if preactivation else nn.Identity()
        self.preactivation = preactivation
        self.out = nn.Linear(channels, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to ``[batch, outputs]``."""
        x = self.stem_norm(self.stem(x))
        x = self.blocks(x if self.preactivation else relu(x))
        if self.preactivation:
            x = relu(self.last_norm(x))
        logits: Tensor = self.out(x.mean((-2, -1)))
        return logits


def resnet20(
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int = 16,
    norm: str = "batch",
    shortcut: str = "pad",
    block: str = "basic",
) -> nn.Module:
    """ResNet-20 for CIFAR (He et al., 2016, Section 4.2), the network of adp (Section 4.2).

    Three stages of three basic blocks with 16, 32 and 64 channels. With the defaults, 3 channels
    and 10 classes it has 269,722 parameters, the 0.27M of He et al.; with
    ``shortcut="projection"`` 272,474. ``norm`` is ``"batch"``, ``"group"`` or ``"none"``;
    ``block`` is ``"basic"`` or ``"preactivation"``.

    >>> sum(p.numel() for p in resnet20((3, 32, 32), 10).parameters())
    269722
    """
    check_choice("resnet20", "block", block, ["basic", "preactivation"])
    return ResNet(
        input_shape,
        outputs,
        stages=(3, 3, 3),
        width=width,
        norm=norm,
        shortcut=shortcut,
        preactivation=block == "preactivation",
    )


def resnet18(
    input_shape: Sequence[int], outputs: int, *, width: int = 64, norm: str = "batch"
) -> nn.Module:
    """ResNet-18 with a CIFAR stem, as in collusion's CIFAR sweeps (Section 6.3).

    The stem is one 3 × 3 convolution of stride 1 without max-pool; shortcuts are projections. The
    paper does not state its stem; this one is usual for 32 × 32 images. 11,173,962 parameters for
    10 classes.
    """
    return _wide(input_shape, outputs, (2, 2, 2, 2), width, norm)


def resnet34(
    input_shape: Sequence[int], outputs: int, *, width: int = 64, norm: str = "batch"
) -> nn.Module:
    """ResNet-34 with a CIFAR stem: as :func:`resnet18`, with stages of 3, 4, 6 and 3 blocks.

    21,282,122 parameters for 10 classes.
    """
    return _wide(input_shape, outputs, (3, 4, 6, 3), width, norm)


def _wide(
    input_shape: Sequence[int], outputs: int, stages: Sequence[int], width: int, norm: str
) -> nn.Module:
    return ResNet(
        input_shape, outputs, stages=stages, width=width, norm=norm, shortcut="projection"
    )
