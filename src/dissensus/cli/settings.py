"""Every setting of a training run, once: as an option, as a key of a TOML file, in ``config.toml``.

A setting has one place, ``[section] key``, where ``config.toml`` of a run keeps it; so that file
can be given to ``--config`` as it is. In a file of one's own the option's name without a section
does as well: ``members = 5`` is ``[ensemble] members = 5``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

__all__ = ["OPTION_SECTIONS", "SETTINGS", "Sections", "Setting", "dashed", "with_settings"]

Sections = dict[str, dict[str, Any]]

#: The headings of the help page by section.
_PANELS = {
    "data": "Data",
    "model": "Model and ensemble",
    "ensemble": "Model and ensemble",
    "training": "Training",
    "machine": "Run",
    "run": "Run",
}


@dataclass(frozen=True)
class Setting:
    """One setting: its place, its kind (a key of ``_TYPES``), its default and what it is for."""

    section: str
    key: str
    kind: str
    default: Any
    help: str

    @property
    def panel(self) -> str:
        """The heading of the help page under which it stands."""
        return _PANELS[self.section]

    @property
    def local(self) -> bool:
        """Whether it says where or how to compute, not what: free to change when resuming."""
        return self.section == "machine" or self.key == "data_dir"


#: Every setting by the name of its option, with underscores.
SETTINGS: dict[str, Setting] = {
    "data": Setting(
        "data",
        "name",
        "text",
        None,
        "A data set by name (digits, cifar10, …), a .csv, .tsv, .parquet or .npz file, a folder of "
        "images, of features or of shards, or shards: 'train-{000..146}.tar', 'part-*.parquet'.",
    ),
    "data_dir": Setting(
        "data", "data_dir", "text", None, "Where data sets are, or are downloaded to."
    ),
    "target": Setting("data", "target", "text", None, "The column of a table to be learnt."),
    "task": Setting(
        "data", "task", "text", None, "classification or regression, where that is not clear."
    ),
    "val": Setting(
        "data", "val", "share", 0.2, "Validation: a share of what is not test, or rows."
    ),
    "test": Setting(
        "data",
        "test",
        "share",
        None,
        "Test: a share of all rows, or rows; 0.2, or the official test set.",
    ),
    "split_seed": Setting("data", "seed", "whole", 0, "Which rows are train, validation and test."),
    "hold_out": Setting(
        "data",
        "hold_out",
        "text",
        None,
        "Classes to keep from training, such as 8,9: the set held_out of `dissensus ood`.",
    ),
    "augment": Setting(
        "data", "augment", "text", None, "Augmentation of images: collusion, adp or none."
    ),
    "adversarial": Setting(
        "data",
        "adversarial",
        "text",
        None,
        "Add as many adversarial examples to each batch: fgsm or pgd:steps=10,step=0.1. ε is drawn "
        "from 0.01 to 0.05, or as eps=0.1 or eps=0.02/0.1 says.",
    ),
    "disagreement": Setting(
        "data",
        "disagreement",
        "text",
        None,
        "Unlabelled data to disagree on, for a2d and divdis: a data set (its training inputs), or "
        "a file with inputs.",
    ),
    "model": Setting(
        "model",
        "name",
        "text",
        "mlp",
        "An architecture by name (mlp, cnn, resnet20, …), or code of your own: module:name or "
        "file.py:name.",
    ),
    "normalize": Setting(
        "model",
        "normalize",
        "switch",
        False,
        "Begin each member with the training inputs' mean and deviation by channel.",
    ),
    "members": Setting("ensemble", "members", "whole", 5, "How many members."),
    "member_seed": Setting(
        "ensemble", "seed", "whole", None, "What members start from; the same as --seed."
    ),
    "combine": Setting(
        "ensemble",
        "combine",
        "text",
        None,
        "probability, score or mean; as the objective and the task have it.",
    ),
    "execution": Setting("ensemble", "execution", "text", "auto", "auto, stacked, looped or tune."),
    "objective": Setting(
        "training",
        "objective",
        "text",
        "independent",
        "What to train with, as name:key=value,…; `dissensus objectives` lists them.",
    ),
    "epochs": Setting("training", "epochs", "whole", 20, "How many epochs."),
    "batch_size": Setting("training", "batch_size", "whole", 128, "Examples a step."),
    "optimizer": Setting(
        "training",
        "optimizer",
        "text",
        "adam",
        "adam, adamw or sgd: sgd:lr=0.1,momentum=0.9; one value a member with slashes.",
    ),
    "schedule": Setting(
        "training",
        "schedule",
        "text",
        "constant",
        "constant, cosine:warmup=5 or multistep:at=30/50,factor=0.2.",
    ),
    "patience": Setting(
        "training",
        "patience",
        "whole",
        None,
        "Stop after so many epochs without a better one.",
    ),
    "select_by": Setting(
        "training",
        "select_by",
        "text",
        "ensemble_error",
        "The best epoch by validation: ensemble_error, member_error, accuracy; or last.",
    ),
    "freeze_patience": Setting(
        "training",
        "freeze_patience",
        "whole",
        None,
        "Freeze a member after so many epochs without a better one of its own.",
    ),
    "clip": Setting("training", "clip", "number", None, "The largest norm of a member's gradient."),
    "seed": Setting("training", "seed", "whole", 0, "What all chance follows from."),
    "exact_train": Setting(
        "training",
        "exact_train",
        "switch",
        False,
        "Evaluate the training data after each epoch as well.",
    ),
    "amp": Setting("training", "amp", "switch", False, "Train in bfloat16."),
    "compile": Setting("training", "compile", "switch", False, "Use torch.compile."),
    "checkpoint_every": Setting(
        "training",
        "checkpoint_every",
        "pace",
        None,
        "Save within an epoch after so many batches (500) or so much time (5min, 30s); 10min.",
    ),
    "threads": Setting(
        "machine",
        "threads",
        "whole",
        None,
        "How many threads torch uses; 1 is best for small networks and busy machines.",
    ),
    "device": Setting(
        "machine", "device", "text", "auto", "cpu, cuda, …; auto takes a GPU if there is one."
    ),
    "out": Setting(
        "run", "out", "text", None, "The run folder; runs/DATA-OBJECTIVE-SEED if not given."
    ),
    "resume": Setting(
        "run", "resume", "switch", False, "Go on with the run in --out; it knows its settings."
    ),
    "quiet": Setting("run", "quiet", "switch", False, "Say nothing but errors."),
}

#: Sections whose keys belong to a data set or a model, which check them.
OPTION_SECTIONS = ("data_options", "model_options")


# ---- as options of a command --------------------------------------------------------------------

_TYPES: dict[str, Any] = {
    "text": str | None,
    "whole": int | None,
    "number": float | None,
    "switch": bool | None,
    "share": str | None,
    "pace": str | None,
}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command``, which takes ``**given``, one option for each setting it does not name.

    Typer reads options from a signature; this one is made from the table, so that a setting is
    written down once.
    """
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.kind != p.VAR_KEYWORD
    ]
    named = {p.name for p in own}
    made = [_parameter(name, setting) for name, setting in SETTINGS.items() if name not in named]
    listed = [
        _list_parameter("data_options", "data", "missing=drop", "An option of the data set"),
        _list_parameter("model_options", "model", "hidden=64,64", "An option of the model"),
    ]
    parameters = [*made, *listed, *own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    flag = f"--{dashed(name)}"
    if setting.kind == "switch":
        flag += f"/--no-{dashed(name)}"
    unsaid = setting.default is None or setting.default is False
    shown = "" if unsaid else f" \\[default: {setting.default}]"
    option = typer.Option(
        flag,
        help=setting.help + shown,
        rich_help_panel=setting.panel,
        show_default=False,
        metavar="SHARE|ROWS" if setting.kind == "share" else None,
    )
    special: Any = Annotated  # whose arguments a type checker wants to see written out
    annotation = special[_TYPES[setting.kind], option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _list_parameter(name: str, section: str, example: str, what: str) -> inspect.Parameter:
    option = typer.Option(
        "--" + dashed(name).removesuffix("s"),
        metavar="KEY=VALUE",
        help=f"{what}, such as {example}; may be repeated.",
        rich_help_panel=_PANELS[section],
        show_default=False,
    )
    annotation = Annotated[list[str] | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def dashed(name: str) -> str:
    """A name as options are written."""
    return name.replace("_", "-")
