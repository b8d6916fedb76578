"""``dissensus train``."""

from __future__ import annotations

from dissensus import runs
from dissensus.cli.console import resumable
from dissensus.cli.options import with_options
from dissensus.runs import Train

__all__ = ["train"]


@with_options
def train(options: Train) -> None:
    """
    Train an ensemble and keep the run in a folder.

    The folder holds what was asked (config.toml), one line for each epoch (metrics.jsonl), a
    checkpoint to resume from, outputs on validation and test data, and what came out (record.json).
    Ctrl-C finishes the step and saves; --resume leads to the same numbers as if nothing had
    happened.

    Examples

      dissensus train --data digits --objective ldr:strength=2 --epochs 20 --out runs/ldr

      dissensus train --resume --out runs/ldr --epochs 40

      dissensus train --data flats.csv --target price --objective augmented:beta=0.5

      dissensus train --data cifar10 --model resnet20 --optimizer sgd:lr=0.1 --augment adp

      dissensus train --data digits --objective adp --adversarial fgsm   more robust

      dissensus train --data x.npz --model my_file.py:make_member --model-option width=64

      dissensus train --data imagenet/ --data-option stream=true --data-option workers=8

      dissensus train --config ldr.toml --seed 1

      torchrun --nproc-per-node 4 -m dissensus train --data cifar10 --model resnet20

    A file for --config has the names of options as keys (data = "digits", batch_size = 64), and
    options of the model and the data in [model_options] and [data_options]. config.toml of any
    run, with the same settings in sections, will do as well. The command line wins over the file.
    """
    with resumable(lambda: runs.resume_command(options)):
        run = runs.train(options)
    if not run.quiet:
        run.show()
