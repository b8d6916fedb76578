"""``dissensus train`` and ``dissensus sweep``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from dissensus import runs, sweeps
from dissensus.cli.options import note, with_options
from dissensus.runs import Train
from dissensus.sweeps import Sweep


@with_options
def train(options: Train) -> None:
    """
    Train an ensemble and keep the run in a folder.

    The folder holds what was asked (config.toml), one line for each epoch (metrics.jsonl), a
    checkpoint to resume from, outputs on validation and test data, and what came out (record.json).
    Ctrl-C finishes the step and saves; --resume leads to the same numbers as if nothing had
    happened. A run that is in --out already is never touched without --resume or --overwrite.

    Examples

      dissensus train --data digits --out runs/independent   five members, each on its own

      dissensus train --data digits --objective ldr:strength=2 --epochs 20 --out runs/ldr

      dissensus train --resume --out runs/ldr --epochs 40   longer; or after Ctrl-C

      dissensus train --data diabetes --objective augmented:beta=0.5 --out runs/diabetes

      dissensus train --data digits --objective joint --combine score --out runs/joint

      dissensus train --data digits --objective adp --epochs 30 --out runs/adp --overwrite

      dissensus train --data digits --objective adp --adversarial fgsm   more robust

      dissensus train --config runs/ldr/config.toml --seed 1   as before, with another seed

    Examples that need other data or packages

      dissensus train --data flats.csv --target price --objective augmented:beta=0.5

      dissensus train --data cifar10 --model resnet20 --optimizer sgd:lr=0.1 --augment adp

      dissensus train --data x.npz --model my_file.py:make_member --model-option width=64

      dissensus train --data imagenet/ --data-option stream=true --data-option workers=8

      torchrun --nproc-per-node 4 -m dissensus train --data cifar10 --model resnet20

    A file for --config has the names of options as keys (data = "digits", batch_size = 64), and
    options of the model and the data in [model_options] and [data_options]. config.toml of any
    run, with the same settings in sections, will do as well. The command line wins over the file.
    """
    with _resumable(lambda: runs.resume_command(options)):
        run = runs.train(options)
    if not run.quiet:
        run.show()


@with_options
def sweep(options: Sweep) -> None:
    """
    Train an ensemble for every point of a grid, several times each, and compare them.

    Repeat r adds r to every seed: it has its own split of the data, initial weights and order of
    batches. Similar ensembles train together, as one fleet; others one after another. Each gets a
    record in --out/cells as soon as it ends; the same command again, or --resume, trains what is
    missing or failed, and may ask for more --repeats. The best point is the one of lowest
    validation error, never chosen by test data.

    Examples

      dissensus sweep --data diabetes --objective augmented --grid beta=0:1:0.1 --repeats 3

      dissensus sweep --data digits --grid objective=independent,joint --grid lr=0.001,0.01

      dissensus sweep --data wine --grid model.hidden=30/30,20 --grid members=5,20 --jobs 2

      dissensus sweep --resume --out sweeps/diabetes-augmented --repeats 4   more repeats

    Examples that need other data or packages

      dissensus sweep --data abalone --objective augmented:beta=0.5 --grid beta=0:1:0.1
      --search lr=0.001,0.005,0.01 --search batch_size=16,32,64 --trials 20 --batch 5

      dissensus sweep --data cifar10 --model resnet20 --objective adp --grid alpha=0,1,2
      --repeats 5 --engine ray --gpus-per-run 1

    A grid may vary any setting of the objective (beta, alpha, strength, …), lr, weight_decay,
    momentum, options of the command (members, epochs, batch_size, patience, objective, …) and
    model.OPTION.

    With --search each repeat first looks for its best setting by Bayesian optimisation (optuna):
    --trials trials, of which --batch are proposed and trained at once. They use the settings given
    outside of --grid (in the example beta=0.5) and are compared by validation error. The whole grid
    then runs with the best setting. All proposals come from this program, wherever they are
    trained; with --storage the search of each repeat is a study that optuna's own tools show.

    With --engine ray fleets and runs are tasks of Ray, on this machine or on the cluster at
    --ray-address. Records come back through Ray, so workers need no shared folder; data are loaded
    where a task runs, from the same path. A worker that dies is replaced, and its cells run again.
    """
    with _resumable(lambda: sweeps.resume_command(options), "finished cells are kept, "):
        summary = sweeps.sweep(options)
    if not summary.quiet:
        summary.show()
    if summary.failures:
        name, error = next(iter(summary.failures.items()))
        note(
            f"dissensus: {len(summary.failures)} of {summary.total} cells failed, such as {name}: "
            f"{error.splitlines()[0]}; the same command tries them again"
        )
        raise typer.Exit(1)


@contextmanager
def _resumable(resume_command: Callable[[], str | None], kept: str = "") -> Iterator[None]:
    """Let Ctrl-C end in the command that goes on from here, and exit status 130.

    ``resume_command`` gives None if nothing was written yet; ``kept`` says what was.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if os.environ.get("RANK", "0") == "0":  # the one process that prints
            again = resume_command()
            if again is None:
                note("dissensus: stopped before training began; nothing was written")
            else:
                note(f"dissensus: stopped; {kept}go on with: {again}")
        raise typer.Exit(130) from stop
