"""Regressors on unknown rows: does a copy that predicts apart on strangers detect them better?

On three tables a deep ensemble learns with squared error. Its copies go on from it for the epochs
of ``Detector.tune``: one with ``repulsion`` on permuted columns, one on the known rows alone. All
are judged by the variance of the members' predictions. The tenth of the rows with the largest
targets is held out and unknown, as are test rows with other numbers
(:func:`reproductions.strangers.settings.changed_rows`). Nothing was settled on these tables.

``python -m reproductions.strangers.regression`` writes
``results/strangers/regression/records.jsonl``.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.records import Record, put_record, read_lines, rounded
from dissensus.detection import evaluate
from dissensus.detection.tuning import tune
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.scores import SCORES
from dissensus.training import fit, predict
from reproductions.page import markdown_table
from reproductions.statistics import mean_interval, paired_difference
from reproductions.strangers import RESULTS
from reproductions.strangers.cells import SEEDS
from reproductions.strangers.settings import changed_rows, encode, permuted_groups
from reproductions.tables.sources import is_there, load_table

FILE = Path("strangers", "regression", "records.jsonl")
TABLES = ("diamonds", "car_prices", "houseprices")
_ROWS, _EPOCHS, _BATCH = 6000, 40, 64
_TITLES = {
    "deep_ensemble": "deep ensemble",
    "longer": "the same, longer",
    "tuned": "**repulsion on strangers, tuned copy**",
}


def run_seed(name: str, seed: int) -> list[Record]:
    """Train a seed of a table; one record for each ensemble."""
    frame, y = load_table(name)
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(len(y))[:_ROWS]
    frame, y = frame.iloc[drawn].reset_index(drop=True), y[drawn]
    known = y <= np.quantile(y, 0.9)
    order = generator.permutation(np.flatnonzero(known))
    train, test = np.split(order, [len(order) * 3 // 4])
    x, groups, width = encode(frame, train)
    scaled = (y - y[train].mean()) / y[train].std()
    targets = torch.from_numpy(scaled[:, None]).float()
    unknown = {"held_out": x[~known], **changed_rows(x[test], width, "letters", generator)}

    make = make_factory("mlp", (x.shape[1],), 1, hidden=(64, 64))
    plain = Ensemble(make, 5, seed=seed, combine="mean")
    rows = x[train], targets[train]
    fit(plain, rows, "independent:loss=mse", epochs=_EPOCHS, batch_size=_BATCH, progress=False)
    go_on = partial(tune, plain, rows, progress=False, batch_size=_BATCH, seed=seed + 1)
    strangers = partial(permuted_groups, torch.tensor(groups))
    ensembles = {
        "deep_ensemble": plain,
        "longer": go_on("independent:loss=mse", strangers=None)[0],
        "tuned": go_on(strangers=strangers)[0],
    }
    records = []
    for contender, ens in ensembles.items():
        error = ens.predict(x[test]) - targets[test]
        own = _variance(ens, x[test])
        aurocs = {
            key: evaluate(own, _variance(ens, other), bootstrap=0).auroc.value
            for key, other in unknown.items()
        }
        facts = {"table": name, "contender": contender, "seed": seed}
        rmse = float(error.square().mean().sqrt())
        records.append(rounded({**facts, "rmse": rmse, "auroc": aurocs}))
    return records


def _variance(ens: Ensemble, x: Tensor) -> Tensor:
    return SCORES["variance"](predict(ens, x).outputs)


def read_regression(results: Path) -> list[Record]:
    """The records; none where there is no file."""
    return read_lines((results / FILE).parent)


def section(records: Sequence[Record]) -> list[str]:
    """The section of the page: AUROC of the variance, and gains over the deep ensemble."""
    if not records:
        return []
    rows = []
    for table in dict.fromkeys(record["table"] for record in records):
        found = {
            (record["contender"], record["seed"]): record
            for record in records
            if record["table"] == table
        }
        seeds = sorted({seed for _, seed in found})
        for name, title in _TITLES.items():
            own = [found[name, seed] for seed in seeds]
            base = [found["deep_ensemble", seed] for seed in seeds]
            cells = [f"{mean_interval([r['rmse'] for r in own]).mean:.3f}"]
            for key in own[0]["auroc"]:
                ours, plain = ([r["auroc"][key] for r in some] for some in (own, base))
                text = f"{np.mean(ours):.3f}"
                if name != "deep_ensemble":
                    text += f", {paired_difference(ours, plain).text('{:+.3f}')}"
                cells.append(text)
            rows.append([table, title, str(len(seeds)), *cells])
    header = ["table", "trained as", "seeds", "RMSE", "held out (near)", "noise (near)"]
    header += ["extreme (far)", "other table (far)"]
    return [
        "## Regression",
        "",
        "Regressors judged by the variance of their members' predictions: mean AUROC, and the",
        "difference from the deep ensemble with its 95% interval over seeds. RMSE on known test",
        "rows, in deviations of the target; a tuned copy is used for the score alone. Held out is",
        "the tenth of the rows with the largest targets.",
        "",
        *markdown_table(header, rows),
        "",
    ]


def main() -> None:
    """Run every seed of every table that is not recorded yet."""
    torch.set_num_threads(1)
    done = {(record["table"], record["seed"]) for record in read_regression(RESULTS)}
    for name in TABLES:
        for seed in SEEDS:
            if is_there(name) and (name, seed) not in done:
                for record in run_seed(name, seed):
                    put_record(
                        RESULTS / FILE, record, lambda r: (r["table"], r["contender"], r["seed"])
                    )
                print(name, seed, flush=True)


if __name__ == "__main__":
    main()
