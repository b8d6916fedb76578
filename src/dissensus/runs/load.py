"""Loading of a run: from its folder back to the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data import DataSummary
from dissensus.runs.folder import is_hub_folder, read_config, read_hub_config
from dissensus.tools.files import check_types, read_safetensors
from dissensus.tools.records import HUB_WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dissensus.ensemble import Ensemble
    from dissensus.models import MemberFactory

Config = Mapping[str, Mapping[str, Any]]
_MODEL = {"name": str, "input_shape": [int], "outputs": int, "options": dict | None}
_ENSEMBLE = {"members": int, "combine": str, "execution": str, "seed": int | None}
Model = Callable[[], "nn.Module"] | Sequence[Callable[[], "nn.Module"]]


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
    ``ens.save``, ``dissensus export --format hub`` or ``export.save_folder`` wrote. A run of the
    command line knows its model by name. For others pass ``make_member``, the function that made
    the members; or, for an ensemble built in another way (unlike members, a shared backbone), pass
    ``into``, one built the same way. A model named by an import path is code outside of Dissensus,
    and any folder could name any code: only ``trust=True`` runs it. ``device="auto"`` is a GPU if
    there is one.

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
    hub = is_hub_folder(run)
    config: Mapping[str, Any] = read_hub_config(run) if hub else read_config(run)
    if into is None:
        check_types(config["ensemble"], _ENSEMBLE, f"{run}: its config: ensemble")
        into = make_ensemble(config, make_member or _stored_model(config, run, trust=trust))
    if hub:
        weights, _ = read_safetensors(Path(run) / HUB_WEIGHTS)
    else:
        weights, execution = _best_weights(run)
        into.execution = execution or into.execution
    put_weights(into, weights, run)
    into.objective = config.get("training", {}).get("objective")
    return into.to(device_named(device)).eval()


def make_ensemble(config: Config, model: Model | DataSummary, *, trust: bool = True) -> Ensemble:
    """A new ensemble as ``[model]`` and ``[ensemble]`` ask.

    ``model`` makes a member, or is a list with one function for each member, or the summary of the
    data that gives the named model its shapes.
    """
    import torch

    from dissensus.ensemble import Ensemble

    asked = config["ensemble"]
    if isinstance(model, DataSummary):
        model = member_factory(config, model, trust=trust)
    how = {"combine": asked["combine"], "execution": asked["execution"]}
    if callable(model):
        members, seed, sharing = asked["members"], asked.get("seed", 0), asked.get("sharing")
        ens = Ensemble(model, members, seed, **how, sharing=sharing)
    else:
        ens = Ensemble.from_members([make_member() for make_member in model], **how)
    if "dtype" not in asked:
        return ens
    kind = getattr(torch, str(asked["dtype"]), None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype of the ensemble must be one of torch, got {asked['dtype']!r}")
    return ens.to(kind)


def _stored_model(config: Mapping[str, Any], run: str | Path, *, trust: bool) -> Model:
    """What made the members, as the folder says; raises if it does not."""
    model, summary = config.get("model"), DataSummary.read(run)
    if is_hub_folder(run):
        if isinstance(model, list) and model:
            return [_hub_factory(each, run, trust=trust) for each in model]
        if isinstance(model, dict):
            return _hub_factory(model, run, trust=trust)
    elif model and "name" in model and summary is not None:
        return member_factory(config, summary, trust=trust)
    raise ValueError(
        f"{run} does not say how its members are made; pass make_member= or into= to dissensus.load"
    )


def _best_weights(run: str | Path) -> tuple[dict[str, Tensor], str | None]:
    """The weights of the best epoch, else the last ones, and the execution of the training."""
    from dissensus.training.run_folder import read_checkpoint

    checkpoint = read_checkpoint(Path(run))
    if checkpoint is None:
        again = f"dissensus train --resume --out {run}"
        raise ValueError(f"{run} has no checkpoint yet; resume it with `{again}`")
    tensors, state = checkpoint
    prefix = "best." if any(name.startswith("best.") for name in tensors) else "model."
    weights = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return weights, state.get("execution")


def device_named(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one."""
    from dissensus.tools.guards import device_named as find  # imports torch

    return find(name)


def member_factory(config: Config, summary: DataSummary, *, trust: bool) -> MemberFactory:
    """The function that makes the members of a run that knows its model by name."""
    from dissensus.models import make_factory

    asked = config["model"]
    name, options = asked["name"], dict(config.get("model_options", {}))
    _check_trust(name, trust=trust)
    normalize = None
    if asked.get("normalize"):
        normalize = (summary.channels["mean"], summary.channels["std"])
    return make_factory(name, summary.input_shape, summary.outputs, normalize=normalize, **options)


def _hub_factory(model: Mapping[str, Any], folder: str | Path, *, trust: bool) -> MemberFactory:
    from dissensus.models import make_factory

    check_types(model, _MODEL, f"{folder}: its model")
    name, shape, outputs = model["name"], model["input_shape"], model["outputs"]
    options: dict[str, Any] = dict(model.get("options") or {})
    statistics = model.get("normalize")
    if statistics is not None:
        check_types(statistics, [[float]], f"{folder}: its model: normalize")
        if len(statistics) != 2:
            raise ValueError(f"{folder}: its model: normalize must be means and deviations")
    normalize = None if statistics is None else (statistics[0], statistics[1])
    _check_trust(name, trust=trust)
    file, colon, function = name.rpartition(":")
    if colon and file.endswith(".py"):
        name = f"{Path(folder).resolve() / file}:{function}"  # the file is beside the config
    return make_factory(name, shape, outputs, normalize=normalize, **options)


def _check_trust(name: str, *, trust: bool) -> None:
    """Raise for a model named by its import path, unless it is trusted."""
    from dissensus.models import MODELS

    if name not in MODELS and ":" in name and not trust:
        raise ValueError(
            f"the model is {name}, code from outside of Dissensus; if you trust it, pass "
            "trust=True (--trust)"
        )


def put_weights(ens: Ensemble, weights: dict[str, Tensor], run: str | Path) -> None:
    """Load ``weights``, a state of an ensemble; an error says how ``ens`` differs from it."""
    if "weights" in weights and ens.weights is None:
        ens.set_weights(weights["weights"])  # an empty slot takes no values
    try:
        ens.load_state_dict(weights)
    except RuntimeError as error:
        reasons = " ".join(str(error).split()).partition("Ensemble: ")[2] or str(error)
        fault = f"the weights in {run} do not fit this ensemble of {ens.members} members"
        raise ValueError(f"{fault}: {reasons[:400]}") from error
