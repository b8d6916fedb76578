"""Settings of a training run: each an option, a key of a TOML file, and a line of ``config.toml``.

A setting has one place, ``[section] key``, where ``config.toml`` of a run keeps it, so that file
can be given to ``--config`` as it is. In a file of one's own the option's name without a section
does as well: ``members = 5`` is ``[ensemble] members = 5``. :func:`resolve` merges the sources.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from dissensus.tools.files import read_toml
from dissensus.tools.specs import nearest, read_number
from dissensus.tools.verbs import option

Sections = dict[str, dict[str, Any]]

#: Sections whose keys belong to a data set or a model, which check them.
OPTION_SECTIONS = ("data_options", "model_options")

#: The headings of the help page by section.
_PANELS = {
    "data": "Data",
    "model": "Model and ensemble",
    "ensemble": "Model and ensemble",
    "training": "Training",
    "machine": "Run",
    "run": "Run",
}


def _setting(place: str, preset: Any, help: str, *, metavar: str | None = None) -> Any:
    """An option with a place, ``section.key``; where it stays None, ``preset`` holds."""
    section, _, key = place.partition(".")
    text = None if preset is None or preset is False else str(preset)
    return option(
        None,
        help,
        metavar=metavar,
        panel=_PANELS[section],
        default_text=text,
        section=section,
        key=key,
        preset=preset,
    )


@dataclass(frozen=True)
class Settings:
    """Everything that can be set about a training run; None leaves a setting to its default."""

    data: str | None = _setting(
        "data.name",
        None,
        "A data set by name (digits, cifar10, …), a .csv, .tsv, .parquet or .npz file, a folder of "
        "images, features or shards, or shards: 'train-{000..146}.tar', 'part-*.parquet'.",
    )
    data_dir: str | None = _setting(
        "data.data_dir", None, "The folder of the data sets, for downloads too."
    )
    target: str | None = _setting("data.target", None, "The column of a table to predict.")
    task: str | None = _setting(
        "data.task", None, "classification or regression, where the data leave it open."
    )
    val: int | float | None = _setting(
        "data.val",
        0.2,
        "Validation: a share of what is not test, or a number of rows.",
        metavar="SHARE|ROWS",
    )
    test: int | float | None = _setting(
        "data.test",
        None,
        "Test: a share of all rows, or a number of rows; 0.2, or the official test set.",
        metavar="SHARE|ROWS",
    )
    split_seed: int | None = _setting(
        "data.seed", 0, "The seed that divides the rows into train, validation and test."
    )
    hold_out: str | None = _setting(
        "data.hold_out",
        None,
        "Classes to keep from training, such as 8,9: the set held_out of `dissensus ood`.",
    )
    augment: str | None = _setting(
        "data.augment", None, "Augmentation of images: collusion, adp or none."
    )
    adversarial: str | None = _setting(
        "data.adversarial",
        None,
        "Add as many adversarial examples to each batch: fgsm or pgd:steps=10,step=0.1. ε is drawn "
        "from 0.01 to 0.05, or as eps=0.1 or eps=0.02/0.1 says.",
    )
    disagreement: str | None = _setting(
        "data.disagreement",
        None,
        "Unlabelled data to disagree on, for a2d and divdis: strangers (inputs made from each "
        "training batch; strangers:mosaic=3,phase=1 sets their mix), a data set (its training "
        "inputs), or a file with inputs.",
    )
    model: str | None = _setting(
        "model.name",
        "mlp",
        "An architecture by name (mlp, cnn, resnet20, …), or your own code: module:name or "
        "file.py:name.",
    )
    normalize: bool | None = _setting(
        "model.normalize",
        False,
        "Standardise inputs in each member, by the mean and deviation of the training channels.",
    )
    members: int | None = _setting("ensemble.members", 5, "How many members.")
    member_seed: int | None = _setting(
        "ensemble.seed", None, "The seed of the initial weights; the same as --seed."
    )
    combine: str | None = _setting(
        "ensemble.combine",
        None,
        "probability, score or mean; else what the objective and the task ask for.",
    )
    execution: str | None = _setting("ensemble.execution", "auto", "auto, stacked, looped or tune.")
    sharing: str | None = _setting(
        "ensemble.sharing",
        None,
        "adapters: members share the weights of linear layers, as in TabM; else each has its own.",
    )
    objective: str | None = _setting(
        "training.objective",
        "independent",
        "What to train with, as name:key=value,…; `dissensus objectives` lists them. Or your own "
        "code: file.py:Name or file.py:Name:key=value.",
    )
    epochs: int | None = _setting("training.epochs", 20, "How many epochs.")
    batch_size: int | None = _setting("training.batch_size", 128, "Examples in a step.")
    optimizer: str | None = _setting(
        "training.optimizer",
        "adam",
        "adam, adamw or sgd: sgd:lr=0.1,momentum=0.9; with slashes, a value for each member.",
    )
    schedule: str | None = _setting(
        "training.schedule",
        "constant",
        "constant, cosine:warmup=5 or multistep:at=30/50,factor=0.2.",
    )
    patience: int | None = _setting(
        "training.patience", None, "Stop after this many epochs without improvement."
    )
    select_by: str | None = _setting(
        "training.select_by",
        "ensemble_error",
        "The best epoch by validation: ensemble_error, member_error, accuracy; or last.",
    )
    freeze_patience: int | None = _setting(
        "training.freeze_patience",
        None,
        "Freeze a member after this many epochs without improvement of its own.",
    )
    clip: float | None = _setting("training.clip", None, "The largest norm of a member's gradient.")
    seed: int | None = _setting("training.seed", 0, "The seed of all randomness.")
    exact_train: bool | None = _setting(
        "training.exact_train", False, "Evaluate the training data after each epoch as well."
    )
    shuffle: str | None = _setting(
        "training.shuffle",
        "shared",
        "The order of examples: shared, or members, for each member its own.",
    )
    bootstrap: bool | None = _setting(
        "training.bootstrap",
        False,
        "Train each member on rows of its own, drawn with replacement (bagging).",
    )
    amp: bool | None = _setting(
        "training.amp", False, "Train in bfloat16, on devices that have it."
    )
    compile: bool | None = _setting("training.compile", False, "Use torch.compile.")
    checkpoint_every: int | str | None = _setting(
        "training.checkpoint_every",
        None,
        "Save within an epoch after so many batches (500) or so much time (5min, 30s); 10min.",
    )
    threads: int | None = _setting(
        "machine.threads",
        None,
        "How many threads torch uses; 1 is best for small networks and busy machines.",
    )
    device: str | None = _setting(
        "machine.device", "auto", "cpu, cuda, …; auto takes a GPU if there is one."
    )
    out: str | None = _setting(
        "run.out", None, "The run folder; runs/DATA-OBJECTIVE-SEED if not given."
    )
    resume: bool | None = _setting(
        "run.resume", False, "Continue the run in --out; it knows its settings."
    )
    quiet: bool | None = _setting("run.quiet", False, "Print nothing but errors.")
    data_options: tuple[str, ...] | dict[str, Any] = option(
        (),
        "An option of the data set, such as missing=drop; may be repeated.",
        flag="--data-option",
        metavar="KEY=VALUE",
        panel=_PANELS["data"],
    )
    model_options: tuple[str, ...] | dict[str, Any] = option(
        (),
        "An option of the model, such as hidden=64,64; may be repeated.",
        flag="--model-option",
        metavar="KEY=VALUE",
        panel=_PANELS["model"],
    )
    config: Path | None = option(None, "A TOML file with settings.", panel="Run")
    trust: bool = option(
        False,
        "Run the code that a file or a stored run names as its model or objective.",
        panel="Run",
    )


def setting_fields() -> dict[str, Field[Any]]:
    """The settings that have a place, by the names of their options."""
    return {item.name: item for item in fields(Settings) if "section" in item.metadata}


def is_local(item: Field[Any]) -> bool:
    """Whether a setting says where or how to compute, not what: free to change when resuming."""
    return item.name == "data_dir" or bool(item.metadata["section"] == "machine")


_FIELDS = setting_fields()
_BY_PLACE = {(f.metadata["section"], f.metadata["key"]): f for f in _FIELDS.values()}
_SECTIONS = list(dict.fromkeys(section for section, _ in _BY_PLACE))


# ---- sources of settings ------------------------------------------------------------------------


def resolve(settings: Settings, stored: Sections | None = None) -> Sections:
    """All settings in their sections; later sources win over earlier ones.

    The sources are the defaults, ``stored`` (the config of a run that is resumed), the file
    ``settings.config``, and the fields of ``settings`` that are not None.

    >>> resolve(Settings(members=3))["ensemble"]["members"]
    3
    """
    merged: Sections = {section: {} for section in (*_SECTIONS, *OPTION_SECTIONS)}
    for (section, key), item in _BY_PLACE.items():
        merged[section][key] = item.metadata["preset"]
    sources: list[tuple[Mapping[str, Any], str]] = [(stored or {}, "the config of the run: ")]
    if settings.config is not None:
        sources.append((read_toml(settings.config), f"{settings.config}: "))
    options = {name.replace("_", "-"): getattr(settings, name) for name in _FIELDS}
    sources.append(({name: v for name, v in options.items() if v is not None}, "--"))
    for source, where in sources:
        for section, key, value in _entries(source, where):
            merged[section][key] = value
    for section in OPTION_SECTIONS:
        given = getattr(settings, section)
        if not isinstance(given, Mapping):
            given = dict(_assignment(text, section) for text in given)
        merged[section] |= given
    return {
        section: {
            key: value
            for key, value in values.items()
            if value is not None or section in OPTION_SECTIONS
        }
        for section, values in merged.items()
    }


def _entries(source: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, Any]]:
    """Section, key and value of each setting in ``source``; an unknown key names the nearest.

    ``where`` is the beginning of error messages.
    """
    for name, value in source.items():
        if isinstance(value, dict) and name in OPTION_SECTIONS:
            yield from ((name, key, setting) for key, setting in value.items())
        elif isinstance(value, dict):
            if name not in _SECTIONS:
                hint = nearest(name, [*_SECTIONS, *OPTION_SECTIONS])
                raise ValueError(f"{where}there is no section [{name}]; {hint}")
            for raw, setting in value.items():
                key = raw.replace("-", "_")
                if (name, key) not in _BY_PLACE:
                    hint = nearest(key, [known for place, known in _BY_PLACE if place == name])
                    raise ValueError(f"{where}there is no setting {raw!r} in [{name}]; {hint}")
                label = f"{where}[{name}] {raw}"
                yield name, key, _checked(setting, _BY_PLACE[name, key], label)
        else:
            item = _FIELDS.get(name.replace("-", "_"))
            if item is None:
                hint = nearest(name, list(_FIELDS))
                raise ValueError(f"{where}there is no setting {name!r}; {hint}")
            place = item.metadata["section"], item.metadata["key"]
            yield *place, _checked(value, item, f"{where}{name}")


def check_settings(config: Mapping[str, Any], where: str | Path) -> None:
    """Raise if a setting in the config of a run has another type than it must have.

    Sections and keys that are no settings are left alone: ``fit`` takes any in ``config=``.
    """
    for (section, key), item in _BY_PLACE.items():
        values = config.get(section)
        value = values.get(key) if isinstance(values, Mapping) else None
        if value is not None:
            _checked(value, item, f"{where}: [{section}] {key}")


#: For each annotation of a setting the types that a value may have, and their name in an error.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str | None": ((str,), "text"),
    "int | None": ((int,), "a whole number"),
    "float | None": ((int, float), "a number"),
    "bool | None": ((bool,), "true or false"),
    "int | str | None": ((int, str), "a number of batches or a time"),
    "int | float | None": ((int, float), "a share below 1 or a whole number of rows"),
}


def _checked(value: Any, item: Field[Any], label: str) -> Any:
    """``value`` as its setting has it; raise with the name of the kind where it is another."""
    kinds, wanted = _KINDS[str(item.type)]
    if isinstance(value, Path) and str in kinds:
        value = str(value)
    if isinstance(value, str) and str not in kinds and float in kinds:
        value = read_number(value, label)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{label} must be {wanted}, got {value!r}")
    return value


def _assignment(text: str, section: str) -> tuple[str, Any]:
    """``key=value`` with a value as in TOML, a list with commas, or plain text.

    >>> _assignment("hidden=32,16", "model_options"), _assignment("missing=drop", "data_options")
    (('hidden', [32, 16]), ('missing', 'drop'))
    """
    key, equals, raw = (piece.strip() for piece in text.partition("="))
    if not equals or not key or not raw:
        option = "--" + section.replace("_", "-").removesuffix("s")
        raise ValueError(f"{option} must be key=value, got {text!r}")
    key = key.replace("-", "_")
    for literal in (raw, f"[{raw}]"):
        try:
            return key, tomllib.loads(f"value = {literal}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return key, [item.strip() for item in raw.split(",")] if "," in raw else raw
