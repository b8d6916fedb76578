"""Small shards of every kind, written without the library."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

Sample = tuple[str, dict[str, bytes]]


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def jpg(red: int, side: int = 24) -> bytes:
    """A plain image, as red as it is numbered."""
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pixels = np.full((side, side + 8, 3), 100, np.uint8)
    pixels[:, :, 0] = red
    image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def write_tar(path: Path, samples: Sequence[Sample]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, fields in samples:
            for field, data in fields.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def vectors(start: int, stop: int, classes: int = 3) -> list[Sample]:
    """Sample ``i`` is ``(i, i², 0, 1)`` of class ``i % classes``."""
    return [
        (
            f"dir/{i:05d}",
            {"npy": npy(np.float32([i, i**2, 0, 1])), "cls": f"{i % classes}\n".encode()},
        )
        for i in range(start, stop)
    ]


def write_vectors(folder: Path, shards: Sequence[int], name: str = "part") -> Path:
    """Tar shards of so many samples each."""
    start = 0
    for number, count in enumerate(shards):
        write_tar(folder / f"{name}-{number:03d}.tar", vectors(start, start + count))
        start += count
    return folder


def write_parquet(folder: Path, shards: Sequence[int], groups: int = 10) -> Path:
    """Parquet shards with the same examples: a list column ``features``, and ``label``."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, count in enumerate(shards):
        i = np.arange(start, start + count)
        x = np.stack([i, i**2, 0 * i, 0 * i + 1], 1).astype(np.float32)
        table = pa.table({"features": list(x), "label": i % 3, "note": [str(n) for n in i]})
        pq.write_table(table, folder / f"part-{number:03d}.parquet", row_group_size=groups)
        start += count
    return folder


def write_pictures(folder: Path, counts: dict[str, int]) -> Path:
    """``class/00000.jpg``; each picture is as red as ten times its number."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / name / f"{number:05d}.jpg").write_bytes(jpg(10 * number))
    return folder
