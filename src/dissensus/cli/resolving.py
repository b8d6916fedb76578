"""From defaults, a run's config, a TOML file and the command line to one set of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dissensus.cli.settings import OPTION_SECTIONS, SETTINGS, Sections, Setting, dashed
from dissensus.specs import nearest

__all__ = ["resolve"]

_BY_PLACE = {(setting.section, setting.key): name for name, setting in SETTINGS.items()}

#: The types of a kind of setting, and what the kind is called in an error.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "text"),
    "whole": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "switch": ((bool,), "true or false"),
    "pace": ((int, str), "a number of batches or a time"),
    "share": ((int, float), "a share below 1 or a whole number of rows"),
}


def resolve(
    given: Mapping[str, Any], file: Path | None = None, stored: Sections | None = None
) -> Sections:
    """All settings in their sections: defaults, then ``stored``, then ``file``, then ``given``.

    ``stored`` is the config of a run that is resumed, ``given`` what stands on the command line,
    by option name; None is what was not said.

    >>> resolve({"members": 3, "epochs": None})["ensemble"]["members"]
    3
    """
    merged: Sections = {section: {} for section in (*_sections(), *OPTION_SECTIONS)}
    for setting in SETTINGS.values():
        if setting.default is not None:
            merged[setting.section][setting.key] = setting.default
    sources = [({} if stored is None else stored, "the config of the run")]
    if file is not None:
        sources.append((_read(file), str(file)))
    for source, where in sources:
        for section, key, value in _settings_of(source, where):
            merged[section][key] = value
    for name, value in given.items():
        if value is None:
            continue
        if name in OPTION_SECTIONS:
            merged[name] |= dict(_assignment(text, name) for text in value)
        else:
            setting = SETTINGS[name]
            merged[setting.section][setting.key] = _converted(value, setting, f"--{dashed(name)}")
    places = list(_BY_PLACE)
    return {
        section: dict(sorted(values.items(), key=lambda item: _rank(places, section, item[0])))
        for section, values in merged.items()
    }


def _rank(places: list[tuple[str, str]], section: str, key: str) -> int:
    """Where a setting stands in the table; options of data sets and models stay in their order."""
    return places.index((section, key)) if (section, key) in places else 0


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"there is no file {file} with settings")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as TOML: {error}") from error


def _settings_of(source: Mapping[str, Any], where: str) -> Iterable[tuple[str, str, Any]]:
    """Each setting in ``source`` with its place; an unknown key raises and names the nearest."""
    for key, value in source.items():
        if isinstance(value, dict):
            yield from _section(key, value, where)
            continue
        name = key.replace("-", "_")
        if name not in SETTINGS:
            raise ValueError(f"{where}: there is no setting {key!r}; {nearest(name, SETTINGS)}")
        setting = SETTINGS[name]
        yield setting.section, setting.key, _converted(value, setting, f"{where}: {key}")


def _section(section: str, values: Mapping[str, Any], where: str) -> Iterable[tuple[str, str, Any]]:
    if section in OPTION_SECTIONS:
        yield from ((section, key, value) for key, value in values.items())
        return
    known = _sections()
    if section not in known:
        near = nearest(section, [*known, *OPTION_SECTIONS])
        raise ValueError(f"{where}: there is no section [{section}]; {near}")
    for raw, value in values.items():
        key = raw.replace("-", "_")
        if (section, key) not in _BY_PLACE:
            inside = [known_key for place, known_key in _BY_PLACE if place == section]
            near = nearest(key, inside)
            raise ValueError(f"{where}: there is no setting {raw!r} in [{section}]; {near}")
        setting = SETTINGS[_BY_PLACE[section, key]]
        yield section, key, _converted(value, setting, f"{where}: [{section}] {raw}")


def _converted(value: Any, setting: Setting, label: str) -> Any:
    """``value`` as its kind has it; raise with the kind's name where it is another."""
    if setting.kind == "share" and isinstance(value, str):
        value = _number(value)
    kinds, wanted = _KINDS[setting.kind]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{label} must be {wanted}, got {value!r}")
    return value


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _assignment(text: str, name: str) -> tuple[str, Any]:
    """``key=value`` with a value as in TOML, a list with commas, or plain text.

    >>> _assignment("hidden=32,16", "model_options"), _assignment("missing=drop", "data_options")
    (('hidden', [32, 16]), ('missing', 'drop'))
    """
    key, equals, raw = (piece.strip() for piece in text.partition("="))
    if not equals or not key or not raw:
        option = "--" + dashed(name).removesuffix("s")
        raise ValueError(f"{option} must be key=value, got {text!r}")
    key = key.replace("-", "_")
    for literal in (raw, f"[{raw}]"):
        try:
            return key, tomllib.loads(f"value = {literal}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return key, [item.strip() for item in raw.split(",")] if "," in raw else raw


def _sections() -> list[str]:
    return list(dict.fromkeys(setting.section for setting in SETTINGS.values()))
