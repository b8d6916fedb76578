"""One checkpoint, whatever the number of ranks: gathered and written by the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.training.distributed.meter import TeamMeter
from dissensus.training.distributed.states import own_part
from dissensus.training.meters import Meter
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.saving import Saver
from dissensus.training.state import History
from dissensus.training.steps import Trainer
from dissensus.training.stream import Stream

if TYPE_CHECKING:
    from dissensus.training.distributed.team import Team
    from dissensus.training.distributed.trainer import TeamTrainer

__all__ = ["TeamSaver"]


class TeamSaver(Saver):
    """As ``Saver``, with the members of this rank; files are those of one process.

    The folder has to be one that all ranks can read.
    """

    def __init__(
        self,
        team: Team,
        objective: Objective,
        recipe: Recipe,
        folder: RunFolder | None,
        stream: Stream,
    ) -> None:
        super().__init__(team.ens, objective, recipe, folder, stream)
        self.team, self.members, self.execution = team, team.members, team.given.execution

    # ---- starting and going on ------------------------------------------------------------------

    def _open(self, config: dict[str, Any], *, resume: bool) -> None:
        folder = self.folder
        assert folder is not None
        settings, needed = self._config(config), self._bytes_needed()
        self.team.group.on_first(lambda: folder.start(settings, needed, resume=resume))

    def _load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        assert self.folder is not None
        found, group = self.folder.load(), self.team.group
        there = group.all_gather(torch.tensor([found is not None]), "decisions").flatten()
        if bool(there[0]) and not bool(there.all()):
            blind = (~there).nonzero().flatten().tolist()
            raise ValueError(
                f"rank {blind[0]} cannot see the checkpoint in {self.folder.path}; the run folder "
                "must be on a file system that all ranks share"
            )
        if found is None or not bool(there[0]):
            return None
        whole, values = found
        tensors = own_part(whole, self.team.own, stacked=self.team.whole.stacked)
        self._pick_randomness(tensors)
        return tensors, values

    def _epochs(self, epochs: int) -> list[dict[str, Any]]:
        folder = self.folder
        assert folder is not None
        return self.team.group.on_first(lambda: folder.keep_epochs(epochs))

    def _pick_randomness(self, tensors: dict[str, Tensor]) -> None:
        """Layers go on with the random numbers of their rank, if there are as many as before."""
        rank = self.team.rank
        saved = [name for name in tensors if name.startswith("random.layers.")]
        if rank == 0 or "random.draws" not in tensors:
            return
        tensors.pop("random.device", None)  # that of the first rank's GPU
        own = tensors.get(f"random.layers.{rank}")
        if len(saved) + 1 == self.team.group.ranks and own is not None:
            tensors["random.layers"] = own
        else:
            del tensors["random.layers"]

    def _weights(self) -> dict[str, Tensor]:
        return self.team.weights()

    def _put_weights(self, weights: dict[str, Tensor]) -> None:
        self.team.put_weights(weights)

    def _meter(self) -> Meter:
        return self.team.meter(self.objective)

    # ---- saving ---------------------------------------------------------------------------------

    def _write(
        self, trainer: Trainer | TeamTrainer, extra: dict[str, Tensor], record: Any = None
    ) -> None:
        if self.folder is None:
            return
        tensors = self._tensors(trainer)
        if not self.team.first:
            return
        if record is not None:
            self.folder.append(record)
        self.folder.save(tensors | extra, self.state.plain())

    def _amid(self, meter: Meter) -> dict[str, Tensor]:
        assert isinstance(meter, TeamMeter)
        extra = super()._amid(meter)
        layers = self.team.group.all_gather(torch.get_rng_state(), "checkpoint")
        return extra | {f"random.layers.{rank}": layers[rank] for rank in range(1, len(layers))}

    def _tensors(self, trainer: Trainer | TeamTrainer) -> dict[str, Tensor]:
        return self.team.gathered(super()._tensors(trainer), everywhere=False)

    def finish(self) -> History:
        """Put the best weights of all members in place, on every rank."""
        if self.best:
            self._put_weights(self.best)
        self.team.fill()
        self.team.given.eval()
        if self.state.execution:
            self.team.given.execution = self.state.execution  # what "tune" chose
        history = self.state.history(self.ens.resolved_execution())
        if self.folder is not None and self.team.first:
            layout = self.team.layout
            ranks = {"members": layout.along, "data": layout.data}
            self._record(history, distributed=ranks)
        return history
