"""``dissensus sweep``."""

from __future__ import annotations

import typer

from dissensus import sweeps
from dissensus.cli.console import note, resumable
from dissensus.cli.options import with_options
from dissensus.sweeps import Sweep

__all__ = ["sweep"]


@with_options
def sweep(options: Sweep) -> None:
    """
    Train an ensemble for every point of a grid, several times each, and compare them.

    Repeat r adds r to every seed: it has its own split of the data, initial weights and order of
    batches. Similar ensembles train together, as one fleet; others one after another. Each gets a
    record in --out/cells as soon as it ends; the same command again, or --resume, trains only what
    is missing or failed, and may ask for more --repeats. The best point is the one of lowest
    validation error, never chosen by test data.

    Examples

      dissensus sweep --data abalone --objective augmented --grid beta=0:1:0.1 --repeats 10

      dissensus sweep --data digits --grid objective=independent,joint --grid lr=0.001,0.01

      dissensus sweep --data wine --grid model.hidden=30/30,20 --grid members=5,20 --jobs 2

      dissensus sweep --data abalone --objective augmented:beta=0.5 --grid beta=0:1:0.1
      --search lr=0.001,0.005,0.01 --search batch_size=16,32,64 --trials 20 --batch 5

      dissensus sweep --resume --out sweeps/abalone-augmented

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
    with resumable(lambda: sweeps.resume_command(options), "finished cells are kept, "):
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
