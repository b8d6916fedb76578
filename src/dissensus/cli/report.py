"""``dissensus report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus.cli.options import with_options
from dissensus.report import Report, build

__all__ = ["report"]


@with_options
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Runs, sweeps, records, or folders of them.", show_default=False),
    ],
    options: Report,
) -> None:
    """
    Make one web page of runs, sweeps and records: tables, interactive figures, pictures.

    PATHS are run folders, sweep folders, records (ood.json, robustness/record.json, those of
    reproduce), or folders of them. The page is one file: it needs no network and no server, and can
    be sent to anybody. Nothing is trained or attacked for it: every number comes from a file, and
    says from which. What is missing is named with the command that would fill it: diagnose, ood,
    attack and sweep leave what the page shows in the run's folder.

    Examples

      dissensus report runs/independent runs/joint runs/adp --out report

      dissensus report runs sweeps/beta --title "Digits"   all runs below a folder

      dissensus report results --out report   the records of experiments
    """
    from dissensus.cli.console import say

    page = build(paths, options)
    say(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    say(f"Open it in a browser: {page.resolve().as_uri()}")
