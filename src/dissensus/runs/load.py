"""Loading of a run: from its folder back to the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data_summary import DataSummary
from dissensus.runs.folder import read_config
from dissensus.runs.hub_folder import (
    build_ensemble,
    check_trust,
    is_hub_folder,
    read_hub_config,
    read_hub_weights,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dissensus.ensemble import Ensemble
    from dissensus.models import MemberFactory

__all__ = [
    "device_named",
    "load",
    "make_ensemble",
    "member_factory",
    "put_weights",
]

Config = Mapping[str, Mapping[str, Any]]


def load(
    run: str | Path,
    *,
    make_member: Callable[[], nn.Module] | None = None,
    into: Ensemble | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> Ensemble:
    """The ensemble of a run with the weights of its best epoch, in evaluation mode.

    The best epoch so far for a run that was stopped; ``run`` may also be a folder that
    ``dissensus export --format hub`` or ``export.save_folder`` wrote. A run of the command line
    knows its model by name. For others pass ``make_member``, the function that made the members;
    or, for an ensemble built in another way (unlike members, a shared backbone), pass ``into``, one
    built the same way. A model named by an import path is code outside of Dissensus, and any folder
    could name any code: only ``trust=True`` runs it. ``device="auto"`` is a GPU if there is one.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> from dissensus.ensemble import Ensemble
    >>> from dissensus.training import fit
    >>> run, make = tempfile.mkdtemp(), lambda: nn.Linear(2, 3)
    >>> data = torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)
    >>> _ = fit(Ensemble(make, members=4), data, epochs=1, out=run, progress=False)
    >>> load(run, make_member=make)(torch.zeros(5, 2)).shape
    torch.Size([4, 5, 3])
    """
    if is_hub_folder(run):
        config, weights = read_hub_config(run), read_hub_weights(run)
        ens = build_ensemble(config, run, make_member, trust=trust) if into is None else into
        put_weights(ens, weights, run)
        return ens.to(device_named(device)).eval()
    from dissensus.training.run_folder import read_checkpoint

    config = read_config(run)
    if into is None and make_member is None:
        make_member = _known_factory(config, run, trust=trust)
    checkpoint = read_checkpoint(Path(run))
    if checkpoint is None:
        raise ValueError(
            f"{run} has no checkpoint yet: it was stopped before its first epoch ended; resume it "
            f"with `dissensus train --resume --out {run}`"
        )
    tensors, state = checkpoint
    if into is not None:
        ens = into
    else:
        assert make_member is not None
        ens = make_ensemble(config, make_member)
    put_weights(ens, _best_weights(tensors), run)
    if state.get("execution"):
        ens.execution = state["execution"]
    return ens.to(device_named(device)).eval()


def make_ensemble(
    config: Config, model: Callable[[], nn.Module] | DataSummary, *, trust: bool = True
) -> Ensemble:
    """A new ensemble as ``[model]`` and ``[ensemble]`` ask.

    ``model`` makes a member, or is the summary of the data that gives the named model its shapes.
    """
    from dissensus.ensemble import Ensemble

    asked = config["ensemble"]
    make = (
        model if not isinstance(model, DataSummary) else member_factory(config, model, trust=trust)
    )
    return Ensemble(
        make,
        members=asked["members"],
        seed=asked.get("seed", 0),
        combine=asked["combine"],
        execution=asked["execution"],
    )


def device_named(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; use cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("this torch sees no CUDA device; use --device cpu")
    return device


def _known_factory(config: Config, run: str | Path, *, trust: bool) -> Callable[[], nn.Module]:
    summary = DataSummary.read(run)
    if "name" not in config.get("model", {}) or summary is None:
        raise ValueError(
            f"{run} does not say how its members are made, as it was not made by `dissensus "
            "train`; pass make_member=, the function that makes one, to dissensus.load"
        )
    return member_factory(config, summary, trust=trust)


def member_factory(config: Config, summary: DataSummary, *, trust: bool) -> MemberFactory:
    """The function that makes the members of a run that knows its model by name."""
    from dissensus.models import make_factory

    asked = config["model"]
    name, options = asked["name"], dict(config.get("model_options", {}))
    check_trust(name, trust=trust)
    normalize = None
    if asked.get("normalize"):
        normalize = (summary.channels["mean"], summary.channels["std"])
    return make_factory(name, summary.input_shape, summary.outputs, normalize=normalize, **options)


def _best_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the best epoch; where none was chosen by validation data, the last ones."""
    prefix = "best." if any(name.startswith("best.") for name in tensors) else "model."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def put_weights(ens: Ensemble, weights: dict[str, Tensor], run: str | Path) -> None:
    """Load ``weights``, a state of an ensemble; an error says how ``ens`` differs from it."""
    if "weights" in weights and ens.weights is None:
        ens.set_weights(weights["weights"])  # an empty slot takes no values
    try:
        ens.load_state_dict(weights)
    except RuntimeError as error:
        reasons = " ".join(str(error).split()).partition("Ensemble: ")[2] or str(error)
        raise ValueError(
            f"the weights in {run} do not fit this ensemble of {ens.members} members; build it as "
            f"it was trained: {reasons[:400]}"
        ) from error
