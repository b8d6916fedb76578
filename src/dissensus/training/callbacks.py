"""Callbacks of :func:`dissensus.fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dissensus.ensemble import Ensemble

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes the metrics of every epoch for TensorBoard: ``callbacks=[TensorBoard("runs/a")]``.

    Each metric becomes a curve such as ``val/accuracy``, each member's ``val/per_member_error/0``.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "the TensorBoard callback needs tensorboard; pip install tensorboard"
            ) from error
        self.folder, self._writer_class = Path(folder), SummaryWriter
        self._writer: Any = None

    def __call__(self, record: dict[str, Any], ens: Ensemble) -> None:
        """Add one epoch."""
        epoch = record["epoch"]
        if self._writer is None:
            # An epoch that a kill made run twice is drawn once.
            self._writer = self._writer_class(str(self.folder), purge_step=epoch)
        for part, metrics in record.items():
            if isinstance(metrics, dict):
                for name, value in _curves(part, metrics).items():
                    self._writer.add_scalar(name, value, epoch)
        self._writer.flush()


def _curves(part: str, metrics: dict[str, Any]) -> dict[str, float]:
    curves = {}
    for name, value in metrics.items():
        several = value if isinstance(value, list) else [value]
        for number, single in enumerate(several):
            if single is not None:  # a member that no batch of the epoch used
                key = f"{part}/{name}/{number}" if isinstance(value, list) else f"{part}/{name}"
                curves[key] = float(single)
    return curves
