"""A regression on a CSV file: how much joint training is good for the members?

    python examples/table_beta_sweep.py
    python examples/table_beta_sweep.py --csv flats.csv --target price

β = 0 trains every member independently, β = 1 trains only their average (collusion, Equation 2).
All values of β, each on several splits of the table, are trained at once as a fleet. Without
``--csv`` the script first writes scikit-learn's diabetes table to a temporary file.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import fmean

from sklearn.datasets import load_diabetes
from torch import Tensor

import dissensus as ds


def diabetes_csv() -> Path:
    """A sample table: ten measurements per patient, and how the disease progressed."""
    table = load_diabetes(scaled=False)
    path = Path(tempfile.mkdtemp()) / "diabetes.csv"
    rows = [[*features, target] for features, target in zip(table.data, table.target, strict=True)]
    lines = [",".join([*table.feature_names, "progression"])]
    path.write_text("\n".join(lines + [",".join(map(str, row)) for row in rows]) + "\n")
    return path


def decomposed(ens: ds.Ensemble, split: tuple[Tensor, Tensor]) -> ds.decomposition.Decomposition:
    """The decomposed squared error of an ensemble on rows that it was not trained on."""
    found = ds.predict(ens, split)
    return ds.decompose(found.outputs, found.targets, loss="mse", combine="mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", type=Path, default=None)
    parser.add_argument("--target", default="progression", help="the column to predict")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--splits", type=int, default=3, help="random splits of the table")
    options = parser.parse_args()
    table = ds.data.load_table(options.csv or diabetes_csv(), target=options.target)
    if table.task != "regression":
        parser.error(f"{options.target} holds classes; this script needs a regression target")

    betas = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
    recipe = ds.Recipe(epochs=options.epochs, patience=10, batch_size=32)
    splits = [table.split(seed) for seed in range(options.splits)]
    runs = [(beta, data) for beta in betas for data in splits]
    sweep = []
    for beta, data in runs:
        network = ds.models.make_factory("mlp", data.input_shape, data.outputs, hidden=(32,))
        ens = ds.Ensemble(network, members=options.members, combine="mean")
        sweep.append(
            ds.Training(ens, data.train, f"augmented:beta={beta},loss=mse", data.val, recipe)
        )
    ds.fit_fleet(sweep)

    validation = {}
    print("β      validation error   test error   diversity on test rows")
    for beta in betas:
        mine = [(one.ens, data) for one, (b, data) in zip(sweep, runs, strict=True) if b == beta]
        on_val = [decomposed(ens, data.val) for ens, data in mine]
        on_test = [decomposed(ens, data.test) for ens, data in mine]
        validation[beta] = fmean(float(found.ensemble_error) for found in on_val)
        error = fmean(float(found.ensemble_error) for found in on_test)
        diversity = fmean(float(found.diversity) for found in on_test)
        print(f"{beta:<6} {validation[beta]:>16.3f} {error:>12.3f} {diversity:>12.3f}")
    best = min(validation, key=lambda beta: validation[beta])
    print(f"\nβ = {best} has the lowest validation error ({options.splits} splits of {table!r}).")
    print("Errors are squared, in units of the target's variance; predicting the mean gives 1.")
    print("If diversity jumps at β = 1 but the error does not fall, the members collude.")


if __name__ == "__main__":
    main()
