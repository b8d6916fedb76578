"""Fleets of a sweep: cells that train together, in groups that stay the same on resuming.

The last digits of a cell's numbers depend on the cells that are computed beside it. So the groups
are written to ``fleets.json`` before anything is trained, and a fleet with missing cells trains
again as a whole; existing records stay as they are. So an interrupted sweep ends with the same
bits. Cells that failed by themselves are tried again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dissensus.sweeps.engines import Cell, CellFolder, Crew
from dissensus.sweeps.engines.cell_folder import as_companion
from dissensus.sweeps.trainer import CellTrainer, nbytes
from dissensus.tools.files import read_json, write_text

FLEETS = "fleets.json"

#: Bytes that the ensembles and data of all batches under way on one machine may take.
_MEMORY = 2 << 30


def make_batches(
    cells: Sequence[Cell],
    missing: Sequence[Cell],
    folder: CellFolder,
    trainer: CellTrainer,
    crew: Crew,
) -> list[list[Cell]]:
    """The batches that give the ``missing`` ones of ``cells`` a record in ``folder``."""
    left = {cell["name"] for cell in missing}
    failed = {name for name, record in folder.records().items() if not record.get("died")} & left
    batches, alone = [], []
    for group in _fixed_groups(cells, folder, trainer, crew) if left else []:
        if any(cell["name"] in left - failed for cell in group):
            batches.append([c if c["name"] in left else as_companion(c) for c in group])
        else:
            alone += [cell for cell in group if cell["name"] in failed]
    return batches + _group(alone, trainer, crew)


def _fixed_groups(
    cells: Sequence[Cell], folder: CellFolder, trainer: CellTrainer, crew: Crew
) -> list[list[Cell]]:
    """All ``cells`` in their groups; new cells get a group, which is stored."""
    file, key = folder.folder.parent / FLEETS, folder.folder.name
    stored = read_json(file, {str: [[str]]}) if file.exists() else {}
    stored_groups: list[list[str]] = stored.get(key, [])
    grouped = {name for names in stored_groups for name in names}
    new = [cell for cell in cells if cell["name"] not in grouped]
    if new:
        groups = _group(new, trainer, crew)
        stored_groups = [*stored_groups, *([cell["name"] for cell in group] for group in groups)]
        write_text(file, json.dumps({**stored, key: stored_groups}, indent=1) + "\n")
    by_name = {cell["name"]: cell for cell in cells}
    groups = [[by_name[name] for name in names if name in by_name] for names in stored_groups]
    return [group for group in groups if group]


def _group(cells: Sequence[Cell], trainer: CellTrainer, crew: Crew) -> list[list[Cell]]:
    """Cells that train together as one fleet, in even parts; others each on its own."""
    batches: list[list[Cell]] = []
    for group in _group_alike(cells):
        size = 1
        if len(group) > 1 and trainer.check(group[0]) is not None:
            job = trainer.prepare(group[0])
            weights = sum(p.numel() * p.element_size() for p in job.ens.parameters())
            repeats = len({cell["repeat"] for cell in group})
            # Weights, gradients, the best ones, moments, and a share of each repeat's data.
            each = 8 * weights + nbytes(job.data) * repeats / len(group)
            most = max(1, int(_MEMORY * crew.machines / crew.jobs / each))
            # One part for each process, more if memory requires it.
            count = max(min(crew.jobs, len(group)), -(-len(group) // most))
            size = -(-len(group) // count)
        batches += [group[begin : begin + size] for begin in range(0, len(group), size)]
    return batches


def _group_alike(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that may train together: those that differ in seeds and numbers alone."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        config = {name: dict(values) for name, values in cell["config"].items()}
        for section in ("data", "ensemble", "training"):
            config[section].pop("seed", None)
        for key in ("objective", "optimizer"):
            layers = config["training"][key].split("/")
            config["training"][key] = [layer.partition(":")[0] for layer in layers]
        for key in ("epochs", "patience", "select_by"):
            config["training"].pop(key, None)
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(cell)
    return list(groups.values())
