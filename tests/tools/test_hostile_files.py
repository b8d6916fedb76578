"""Hostile files: FIFOs and folders are refused, and what is too large before it is read."""

import os
from pathlib import Path

import numpy as np
import pytest

from dissensus import data
from dissensus.data.column_values import read_columns
from dissensus.data.images import decode_image
from dissensus.runs import DataSummary
from dissensus.tools.files import read_npz
from tools.fuzz.file_generators import bomb, png
from tools.fuzz.hostile_files import READERS


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.parametrize("kind", READERS)
def test_a_fifo_or_a_folder_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"special.{kind}"
    own = [read for read in READERS[kind] if "_inside" not in read.__qualname__]
    for make, remove in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
        make(path)
        for read in own:
            if "read_bytes" not in read.__code__.co_names:
                with pytest.raises(ValueError, match=path.name):
                    read(path)
        remove(path)
    with pytest.raises(ValueError, match=r"not a file to read, but a device|there is no"):
        READERS[kind][0](Path("/dev/zero"))


def test_an_array_is_refused_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(bomb())
    with pytest.raises(ValueError, match=r"bomb\.npz would take 8\.0 GiB.* DISSENSUS_MAX_BYTES"):
        read_npz(file)
    digits = DataSummary("digits", "classification", [1, 8, 8], 10, {})
    with pytest.raises(ValueError, match=r"bomb\.npz must be \[rows, 1, 8, 8\], .* got \(2147"):
        data.read_inputs(file, digits)


def test_the_limit_is_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(100, np.float32))
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "399")
    with pytest.raises(ValueError, match="raise DISSENSUS_MAX_BYTES"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "4e2")
    assert read_npz(tmp_path / "a.npz")["x"].shape == (100,)
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "much")
    with pytest.raises(ValueError, match="must be a number of bytes, got 'much'"):
        read_npz(tmp_path / "a.npz")


def test_tables_and_images_are_refused_by_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").table({"x": np.zeros(1 << 20, np.int8)}),
        tmp_path / "rows.parquet",
    )
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,2\n" * 10_000)
    (tmp_path / "wide.png").write_bytes(png(60_000, 1, bytes(60_001)))
    with pytest.raises(ValueError, match=r"wide.png, scaled .* 4388571 × 73"):
        decode_image(tmp_path / "wide.png", 64)
    monkeypatch.setenv("DISSENSUS_MAX_BYTES", "10000")
    for name in ("rows.parquet", "rows.csv"):
        with pytest.raises(ValueError, match=rf"{name}.* more than the limit"):
            read_columns(tmp_path / name)
