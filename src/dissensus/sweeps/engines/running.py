"""Run cells, wherever an engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dissensus.progress import ProgressBar
from dissensus.sweeps.engines.engines import Engine
from dissensus.sweeps.engines.folder import Cell, CellFolder, Record, check_cells, settle
from dissensus.sweeps.engines.local import LocalEngine
from dissensus.sweeps.engines.worker import Each

__all__ = ["run_cells"]


def run_cells(
    cells: Sequence[Cell],
    run: Callable[[Cell], dict[str, Any]],
    folder: str | Path | CellFolder,
    *,
    jobs: int = 1,
    engine: Engine | None = None,
    on_record: Callable[[Record], object] | None = None,
    progress: bool = True,
    title: str = "",
    again: bool = False,
) -> list[Record]:
    """Run the cells that ``folder`` has no result of yet; return all records, in order of cells.

    A record is ``{"name", "cell", "result"}``, or ``{"name", "cell", "error", "traceback"}`` for a
    cell that failed, with ``seconds`` and ``facts`` (versions, machine, commit, time). A failed
    cell does not stop the others and is run again at the next start. A record that was made with
    other settings than the cell's is refused, or with ``again`` run once more and replaced. Cells
    that another program on the same folder is at are left to it, and its records taken over.

    ``run`` gets a cell and returns its result as plain JSON values. With ``jobs > 1`` it runs in
    that many processes, each with one torch thread, so it must be a function of a module. All its
    chance should follow from the cell's settings: cells run in no fixed order. ``engine`` says
    where to run instead, such as ``RayEngine()``.

    ``on_record`` is called with each new record; ``progress`` shows a bar on a terminal.
    """
    chosen = LocalEngine(jobs) if engine is None else engine
    place = folder if isinstance(folder, CellFolder) else CellFolder(folder)
    check_cells(cells)
    records, missing = settle(cells, place, again=again)
    place.folder.mkdir(parents=True, exist_ok=True)
    title, before, total = title or "cells", len(records), len(cells)
    with ProgressBar(title, total, completed=before, show=progress) as bar:

        def end(record: Record) -> None:
            records[record["name"]] = record
            _show(bar, record, records)
            if on_record is not None:
                on_record(record)

        def wait(count: int) -> None:
            bar.say(f"{title}: {count} cells are run by another program; waiting for them")

        if before:
            bar.say(f"{title}: {before} of {total} cells are done already")
        if missing:
            with chosen.crew(Each(run)) as crew:
                crew.run([[cell] for cell in missing], place, end, wait)
        failed = sum("error" in record for record in records.values())
        if len(records) - failed > before:
            text = f"{title}: {len(records) - failed} of {total} cells done"
            bar.say(f"{text}, {failed} failed" if failed else text)
    return [records[cell["name"]] for cell in cells]


def _show(bar: ProgressBar, record: Record, records: dict[str, Record]) -> None:
    """Show that a cell has ended; a failure stays on the screen."""
    bar.update(len(records), note=record["name"])
    if record.get("error") is not None:
        bar.say(f"{bar.title}: {record['name']} failed: {record['error'].splitlines()[0]}")
    else:
        done = sum("error" not in other for other in records.values())
        took = f"{record['name']} took {record['seconds']:.1f} s"
        bar.log(f"{bar.title}: {done}/{bar.total}, {took}")
