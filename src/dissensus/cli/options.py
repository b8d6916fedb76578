"""Options that several commands share, said once: the commands' parameters have these types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataDir", "Device", "Trust"]

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where data sets are now.", show_default=False),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the run names as its model.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, … or auto.")]
