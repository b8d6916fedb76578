"""Settings: one table for options, files and ``config.toml``; who wins, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

from dissensus.cli.resolving import resolve
from dissensus.cli.settings import OPTION_SECTIONS, SETTINGS
from dissensus.runs import read_config
from dissensus.training import Recipe


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_options_win_over_the_file_and_the_file_over_the_run(tmp_path: Path) -> None:
    file = written(tmp_path, "epochs = 7\nmembers = 4\n")
    stored = {"training": {"epochs": 3, "batch_size": 8}, "ensemble": {"members": 2}}
    found = resolve({"members": 9, "epochs": None}, file, stored)
    assert found["ensemble"]["members"] == 9  # said on the command line
    assert found["training"]["epochs"] == 7  # in the file
    assert found["training"]["batch_size"] == 8  # in the run
    assert found["training"]["optimizer"] == "adam"  # nowhere


def test_a_file_may_use_sections_hyphens_and_options_of_the_model(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'data = "wine"\nbatch-size = 16\nval = 30\n[ensemble]\nmembers = 2\n'
        "[model_options]\nhidden = [8, 4]\n",
    )
    found = resolve({}, file)
    assert found["data"] == {"name": "wine", "val": 30, "seed": 0}
    assert found["training"]["batch_size"] == 16
    assert found["ensemble"]["members"] == 2
    assert found["model_options"] == {"hidden": [8, 4]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "no setting 'epoch'; did you mean 'epochs'?"),
        ("[training]\nbatchsize = 3", r"'batchsize' in \[training\]; did you mean 'batch_size'?"),
        ("[data]\nvla = 0.1", r"'vla' in \[data\]; did you mean 'val'?"),
        ("[trainig]\nepochs = 3", r"no section \[trainig\]; did you mean 'training'?"),
        ("epochs = 'many'", "epochs must be a whole number, got 'many'"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("amp = 1", "amp must be true or false, got 1"),
        ("val = 'half'", "val must be a share below 1 or a whole number of rows, got 'half'"),
        ("epochs = ", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"settings.toml.*{message}"):
        resolve({}, written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file .*absent.toml"):
        resolve({}, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hidden=32", 32),
        ("hidden=32,16", [32, 16]),
        ("hidden=[32, 16]", [32, 16]),
        ("dropout=0.5", 0.5),
        ("norm=group", "group"),
        ("drop=id,street", ["id", "street"]),
        ("flag=true", True),
        ("name='a,b'", "a,b"),
    ],
)
def test_options_of_the_model_are_read_as_toml_or_text(text: str, value: object) -> None:
    key = text.partition("=")[0]
    assert resolve({"model_options": [text]})["model_options"] == {key: value}


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="--data-option must be key=value, got 'missing'"):
        resolve({"data_options": ["missing"]})


def test_shares_are_numbers_of_either_kind() -> None:
    found = resolve({"val": "0.25", "test": "40"})["data"]
    assert (found["val"], found["test"]) == (0.25, 40)
    assert isinstance(found["test"], int)


def test_every_setting_of_a_recipe_has_an_option_with_the_same_default() -> None:
    recipe = {item.name: item.default for item in dataclasses.fields(Recipe)}
    options = {s.key: s.default for s in SETTINGS.values() if s.section == "training"}
    assert {key: options[key] or None for key in recipe} == {
        key: value or None for key, value in recipe.items()
    }


def test_no_two_settings_share_a_place() -> None:
    places = [(setting.section, setting.key) for setting in SETTINGS.values()]
    assert len(set(places)) == len(places)
    assert not {section for section, _ in places} & set(OPTION_SECTIONS)


def test_the_config_of_a_run_is_a_file_of_settings(digits_run: Path) -> None:
    found = resolve({}, digits_run / "config.toml")
    kept = read_config(digits_run)
    assert {section: found[section] for section in kept} == kept
