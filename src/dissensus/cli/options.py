"""Options that several commands share, said once: the commands' parameters have these types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["CpusPerRun", "DataDir", "Device", "EngineName", "GpusPerRun", "RayAddress", "Trust"]

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where data sets are now.", show_default=False),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the run names as its model.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, … or auto.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where it runs: local, or ray (needs dissensus\\[ray]).",
        rich_help_panel="Engine",
    ),
]
CpusPerRun = Annotated[
    int | None,
    typer.Option(
        "--cpus-per-run",
        help="Cores, and threads, of each run on Ray. \\[default: 1]",
        rich_help_panel="Engine",
        show_default=False,
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-run",
        help="GPUs of each run on Ray, 0.5 to share one; without it runs see none.",
        rich_help_panel="Engine",
        show_default=False,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="A Ray cluster, host:6379 or auto; else $RAY_ADDRESS, else a Ray of this machine.",
        rich_help_panel="Engine",
        show_default=False,
    ),
]
