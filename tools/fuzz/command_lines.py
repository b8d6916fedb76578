"""Command lines on hostile files and folders: an answer or one sentence, never a traceback."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

from typer.testing import CliRunner

from dissensus.cli.app import app
from dissensus.runs import train
from tools.fuzz.file_generators import (
    GENERATORS,
    damage,
    good_files,
    json_files,
    other_type,
    toml_files,
)

Words = list[object]
TINY = {"members": 2, "epochs": 1, "threads": 1, "quiet": True, "model_options": {"hidden": 8}}


def make_good_run(folder: Path) -> Path:
    """A small finished run on a table beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "table.csv").write_text("a,b,y\n" + "1,2,x\n2,1,z\n3,5,x\n4,4,z\n" * 15)
    train(data=str(folder / "table.csv"), target="y", out=str(folder / "run"), **TINY)
    return folder / "run"


def failure(words: Words) -> str:
    """How a command line failed to answer as it must; empty if it did."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return repr(result.exception)
    if result.exit_code not in (0, 2):
        return f"exit status {result.exit_code}"
    if result.exit_code and not any(sign in result.output for sign in ("Usage:", "dissensus: ")):
        return f"no sentence: {result.output}"
    bug = any(sign in result.output for sign in ("or this is a bug", "Traceback"))
    return result.output if bug else ""


def commands_on_run(run: Path) -> list[Words]:
    """Every command that reads a run folder."""
    table = run.parent / "table.csv"
    return [
        ["runs", run.parent],
        ["report", run, "--out", run.parent / "page"],
        ["evaluate", run],
        ["diagnose", run],
        ["ood", run, "--ood", table],
        ["predict", run, "--input", table, "--output", run.parent / "p.csv"],
        ["export", run, "--format", "hub", "--out", run.parent / "hub"],
        ["train", "--resume", "--quiet", "--out", run],
        ["train", "--quiet", "--config", run / "config.toml", "--out", run.parent / "again"],
    ]


def commands_on_file(file: Path, run: Path) -> list[Words]:
    """Every command that takes a file of inputs, predictions, data or settings."""
    train = ["train", "--quiet", "--epochs", 1, "--threads", 1, "--out", file.with_suffix(".run")]
    if file.suffix == ".toml":
        return [[*train, "--config", file]]
    return [
        ["predict", run, "--input", file, "--output", file.with_suffix(".out.csv")],
        ["ood", run, "--ood", file],
        ["evaluate", file],
        ["diagnose", file],
        [*train, "--data", file, "--target", "y"],
    ]


def on_spoilt_runs(good: Path, folder: Path) -> Iterator[Words]:
    """Two commands on each of endlessly many copies of a run with one file that is hostile."""
    rng = random.Random(0)
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    texts = [*json_files(), *toml_files()]
    for number in count():
        run = folder / str(number) / "run"
        shutil.copytree(good, run)
        shutil.copy(good.parent / "table.csv", run.parent)
        file = run / rng.choice(files)
        content = file.read_bytes()
        kind = rng.choice(["damage", "replace", "type", "folder"])
        if kind == "damage" and content:
            _, spoilt = next(islice(damage("a", content, rng), rng.randrange(1, 4), None))
            file.write_bytes(spoilt)
        elif kind == "type" and file.suffix in (".json", ".toml", ".jsonl"):
            file.write_bytes(other_type(file.suffix, content, rng))
        elif kind == "folder":
            file.unlink()
            file.mkdir()
        else:
            file.write_bytes(rng.choice(texts)[1])
        yield from rng.sample(commands_on_run(run), 2)
        shutil.rmtree(run.parent)


def on_files(good: Path, folder: Path) -> Iterator[Words]:
    """Two commands on each of endlessly many files, made by hand and damaged."""
    rng, whole = random.Random(1), good_files(folder)
    for turn in count():
        for kind in ("npz", "npy", "csv", "parquet", "safetensors", "toml"):
            by_hand = GENERATORS[kind]() if kind in GENERATORS and not turn else ()
            damaged = islice(damage("damaged", whole[kind], rng), 12)
            for number, (name, content) in enumerate([*by_hand, *damaged]):
                file = folder / f"{turn}-{number}-{name}.{kind}"
                file.write_bytes(content)
                every = commands_on_file(file, good)
                yield from rng.sample(every, min(2, len(every)))


def cases(folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` command lines: half on spoilt runs, half on hostile files."""
    good = make_good_run(folder / "good")
    kinds = on_spoilt_runs(good, folder / "spoilt"), on_files(good, folder)
    for words in (each for pair in zip(*kinds, strict=True) for each in pair):
        if count <= 0:
            return
        count -= 1
        yield " ".join(map(str, words)), partial(failure, words)
