"""A small job for ``torchrun``, slow enough to be hit at any moment: ``job.py FOLDER``.

Every rank leaves its process number in the folder beside the run, for those who want to hit it.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.training import Distributed, History, fit
from dissensus.training.distributed.ranks import restarts

EPOCHS, BATCHES = 30, 4


def train(
    folder: Path, *, pause: float = 0.0, resume: bool = False, distributed: bool | Distributed
) -> tuple[Ensemble, History]:
    """Three members, which two ranks share unevenly."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16 * BATCHES, 4, generator=generator)

    def slowly(inputs: Tensor, generator: torch.Generator) -> Tensor:
        time.sleep(pause)
        return inputs

    ens = Ensemble(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)), 3)
    history = fit(
        ens,
        (x, x.argmax(1)),
        "adp",
        val=(x, x.argmax(1)),
        augment=slowly,
        epochs=EPOCHS,
        batch_size=16,
        out=folder,
        resume=resume,
        progress=False,
        distributed=distributed,
    )
    return ens, history


if __name__ == "__main__":
    torch.set_num_threads(1)
    top = Path(sys.argv[1])
    (top / f"pid-{restarts()}-{os.environ['RANK']}").write_text(str(os.getpid()))
    train(top / "run", pause=float(sys.argv[2]), distributed=Distributed(timeout=6))
