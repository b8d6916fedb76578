"""Options of the sweep command, and of every verb that runs cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dissensus.runs import Settings
from dissensus.sweeps.pool import LocalEngine
from dissensus.tools.specs import check_choice
from dissensus.tools.verbs import option

if TYPE_CHECKING:
    from dissensus.sweeps.ray import RayEngine


@dataclass(frozen=True)
class EngineOptions:
    """Options of verbs that run cells: the engine, and the share of the machine of each run."""

    jobs: int | None = option(
        None,
        "Processes at once, each with one thread; on Ray, runs at once.",
        panel="Engine",
        default_text="1; on Ray as many as fit",
    )
    engine: str = option(
        "local", "Where it runs: local, or ray (needs dissensus[ray]).", panel="Engine"
    )
    cpus_per_run: int | None = option(
        None, "Cores, and threads, of each run on Ray.", panel="Engine", default_text="1"
    )
    gpus_per_run: float | None = option(
        None,
        "GPUs of each run on Ray, 0.5 to share one; without it runs see none.",
        panel="Engine",
    )
    ray_address: str | None = option(
        None,
        "A Ray cluster, host:6379 or auto; else $RAY_ADDRESS, else a Ray of this machine.",
        panel="Engine",
    )

    def make_engine(self) -> LocalEngine | RayEngine:
        """The engine with these settings."""
        check_choice("--engine", "engine", self.engine, ("local", "ray"))
        asked = {"cpus": self.cpus_per_run, "gpus": self.gpus_per_run, "address": self.ray_address}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if self.engine == "ray":
            from dissensus.sweeps.ray import RayEngine

            return RayEngine(self.jobs, **given)
        if given:
            raise ValueError("--cpus-per-run, --gpus-per-run and --ray-address need --engine ray")
        return LocalEngine(1 if self.jobs is None else self.jobs)


@dataclass(frozen=True)
class Sweep(EngineOptions, Settings):
    """Options of :func:`sweep`: a grid over the settings of a run, and where to train."""

    grid: tuple[str, ...] | dict[str, Any] = option(
        (),
        "Values with commas, or start:stop:step; may be repeated for a product.",
        metavar="KEY=VALUES",
        panel="Sweep",
    )
    repeats: int | None = option(
        None,
        "How often each point is trained; several tell a better point from a lucky one.",
        panel="Sweep",
        default_text="1",
    )
    search: tuple[str, ...] | dict[str, Any] = option(
        (),
        "What each repeat searches before its grid; may be repeated.",
        metavar="KEY=VALUES",
        panel="Sweep",
    )
    trials: int | None = option(
        None, "Trials of the search in each repeat.", panel="Sweep", default_text="20"
    )
    batch: int | None = option(
        None, "Trials that are proposed at once.", panel="Sweep", default_text="5"
    )
    storage: str | None = option(
        None,
        "Where others can follow the search: a file of optuna's, or sqlite:///….",
        panel="Sweep",
    )
    out: str | None = option(
        None, "The folder of the sweep; sweeps/DATA-OBJECTIVE if not given.", panel="Run"
    )
    resume: bool | None = option(
        None, "Continue the sweep in --out; it knows its settings.", panel="Run"
    )
