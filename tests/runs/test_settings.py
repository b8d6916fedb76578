"""Settings: declared once for options, files and ``config.toml``; precedence and refusals."""

import dataclasses
from pathlib import Path

import pytest

import dissensus as ds
from dissensus.runs import Settings, Train, read_config, resolve
from dissensus.runs.settings import setting_fields
from dissensus.tools.verbs import collect
from dissensus.training import Recipe


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_options_win_over_the_file_and_the_file_over_the_run(tmp_path: Path) -> None:
    file = written(tmp_path, "epochs = 7\nmembers = 4\n")
    stored = {"training": {"epochs": 3, "batch_size": 8}, "ensemble": {"members": 2}}
    found = resolve(Settings(members=9, config=file), stored)
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
    found = resolve(Settings(config=file))
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
        resolve(Settings(config=written(tmp_path, text)))


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
    assert resolve(Settings(model_options=(text,)))["model_options"] == {key: value}


def test_an_option_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="--data-option must be key=value, got 'missing'"):
        resolve(Settings(data_options=("missing",)))


def test_python_may_pass_paths_and_mappings() -> None:
    given = {"out": Path("runs/x"), "model_options": {"hidden": [8, 4]}}
    sections = resolve(collect(Train, None, given))
    assert sections["run"]["out"] == str(Path("runs/x"))
    assert sections["model_options"] == {"hidden": [8, 4]}
    with pytest.raises(ValueError, match="train has no option 'epoch'; did you mean 'epochs'"):
        ds.runs.train(epoch=3)


def test_a_share_is_finite_and_settings_keep_their_order() -> None:
    with pytest.raises(ValueError, match="--val must be finite, got inf"):
        resolve(Settings(val="inf"))  # type: ignore[arg-type]
    asked = resolve(Settings(task="regression", target="price", data="a.csv"))
    assert list(asked["data"]) == ["name", "target", "task", "val", "seed"]


def test_every_setting_of_a_recipe_has_an_option_with_the_same_default() -> None:
    recipe = {item.name: item.default for item in dataclasses.fields(Recipe)}
    options = {
        item.metadata["key"]: item.metadata["preset"]
        for item in setting_fields().values()
        if item.metadata["section"] == "training"
    }
    assert {key: options[key] or None for key in recipe} == {
        key: value or None for key, value in recipe.items()
    }


def test_the_config_of_a_run_is_a_file_of_settings(tmp_path: Path) -> None:
    ds.runs.train(data="wine", members=2, epochs=1, out=tmp_path / "run", quiet=True)
    found = resolve(Settings(config=tmp_path / "run" / "config.toml"))
    kept = read_config(tmp_path / "run")
    assert {section: found[section] for section in kept} == kept


def test_numbers_of_a_config_have_limits(tmp_path: Path) -> None:
    config, table = tmp_path / "config.toml", tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "1,2,x\n2,1,z\n" * 10)
    limits = {
        "members = 10000000": "members must be .*10000",
        "threads = 1000000": "threads must be .*1024",
        "model_options = {hidden = 1000000000000}": "cannot be built|parameters",
        "model_options = {hidden = [100000, 100000]}": "would have 100",
        "model_options = {hidden = 0.5}": "mlp cannot be built with these options",
    }
    for text, sentence in limits.items():
        config.write_text(f'data = "{table}"\ntarget = "y"\n{text}\n')
        with pytest.raises(ValueError, match=sentence):
            ds.runs.train(config=config, out=str(tmp_path / "run"), quiet=True)
