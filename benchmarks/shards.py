"""Examples from disk: one epoch of batches, against other loaders over the same files.

The files are made in a temporary folder and read from the system's cache, in one process and one
thread: what is timed is the work for an example, not the disk. Every loader shuffles, decodes by
the same function and gives float32 batches. The webdataset library takes part if it is there.
"""

import importlib.util
import io
import os
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.timing import Contender, Result, compare
from dissensus import data
from dissensus.data.images import decode_image
from dissensus.training.batches import as_batches

BATCH, SIDE, FEATURES, GROUP = 64, 64, 16, 10_000
Sample = dict[str, bytes]


def run(quick: bool) -> list[Result]:
    """Time images, small vectors in tar files, and rows of Parquet."""
    images, vectors, rows = (64, 300, 20_000) if quick else (400, 4000, 500_000)
    repeats = 2 if quick else 7
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # of the indexes
        return [
            _images(folder, images, repeats),
            _vectors(folder, vectors, repeats),
            _rows(folder, rows, repeats),
        ]


def _images(folder: Path, count: int, repeats: int) -> Result:
    generator = np.random.default_rng(0)
    samples: list[Sample] = []
    for number in range(count):
        small = Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((160, 128)).save(file, "JPEG", quality=90)
        samples.append({"jpg": file.getvalue(), "cls": b"%d" % (number % 10)})
        place = folder / "images" / f"{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05d}.jpg").write_bytes(file.getvalue())
    spec = _tar(folder / "images.tar", samples)
    files = data.ImageFolder(folder / "images", SIDE)
    others = _webdataset(spec, _pixels)
    return compare(
        f"An epoch of {count} JPEG images of 160 × 128, to 64 × 64, ratio to torch's DataLoader",
        Contender("torch DataLoader, files", _through(DataLoader(files, BATCH, shuffle=True))),
        [
            Contender("dissensus, files", _ours(folder / "images", stream=True), 1.1),
            Contender("dissensus, tar", _ours(spec), 1.1),
            *others,
        ],
        repeats=repeats,
    )


def _vectors(folder: Path, count: int, repeats: int) -> Result:
    generator = np.random.default_rng(0)
    samples: list[Sample] = []
    (folder / "vectors").mkdir()
    for number in range(count):
        file = io.BytesIO()
        np.save(file, generator.normal(size=FEATURES).astype(np.float32))
        samples.append({"npy": file.getvalue(), "cls": b"%d" % (number % 10)})
        (folder / "vectors" / f"{number:06d}-{number % 10}.npy").write_bytes(file.getvalue())
    spec = _tar(folder / "vectors.tar", samples)
    files = _Files(sorted((folder / "vectors").iterdir()))
    return compare(
        f"An epoch of {count:,} vectors of {FEATURES} numbers, ratio to torch's DataLoader",
        Contender("torch DataLoader, .npy files", _through(DataLoader(files, BATCH, shuffle=True))),
        [
            Contender("dissensus, tar", _ours(spec), 1.0),
            *_webdataset(spec, lambda raw: torch.from_numpy(np.load(io.BytesIO(raw)))),
        ],
        repeats=repeats,
    )


def _rows(folder: Path, count: int, repeats: int) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, FEATURES)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), FEATURES)
    file = folder / "rows-0.parquet"
    table = pa.table({"x": lists, "label": pa.array(np.arange(count) % 10)})
    pq.write_table(table, file, row_group_size=GROUP)
    loader = DataLoader(_RowGroups(file), batch_size=None)
    return compare(
        f"An epoch of {count:,} rows of Parquet in batches of {BATCH}, ratio to a loader that "
        "shuffles row groups and the rows in each",
        Contender("torch DataLoader, row groups", _through(loader)),
        [Contender("dissensus, windows of row groups", _ours(str(folder / "rows-*.parquet")), 1.0)],
        repeats=repeats,
    )


# ---- loaders ------------------------------------------------------------------------------------


def _ours(spec: str | Path, **options: Any) -> Callable[[], None]:
    """An epoch as training sees it; the index was made before."""
    options = {"val": 0, "test": 0, **options}
    found = data.load(spec, **({"size": SIDE} | options if "rows" not in str(spec) else options))
    batches = as_batches(found.train, BATCH, shuffle=True, device=torch.device("cpu"))

    def epoch() -> None:
        assert sum(len(x) for x, _ in batches.epoch(seed=0)) == len(found.train[0])

    return epoch


def _through(loader: Iterable[Any]) -> Callable[[], None]:
    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def _webdataset(spec: str, decode: Callable[[bytes], Tensor]) -> list[Contender]:
    if importlib.util.find_spec("webdataset") is None:
        return []
    import webdataset

    def epoch() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = webdataset.WebDataset(spec, shardshuffle=False).shuffle(1000)
            decoded = found.to_tuple("jpg;npy", "cls").map_tuple(decode, int)
            for _ in decoded.batched(BATCH):
                pass

    return [Contender("webdataset, tar", epoch)]


def _pixels(raw: bytes) -> Tensor:
    """As ``ImageFolder`` gives an image."""
    pixels = decode_image(io.BytesIO(raw), SIDE, "an image")
    return torch.from_numpy(pixels.copy()).float().div_(255)


class _Files(Dataset[tuple[NDArray[Any], int]]):
    """One ``.npy`` file an example."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[NDArray[Any], int]:
        return np.load(self.files[number]), int(self.files[number].stem[-1])


class _RowGroups(IterableDataset[tuple[Tensor, Tensor]]):
    """What one would write by hand: row groups in a random order, each shuffled, cut to batches."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self.file)
        for group in torch.randperm(file.num_row_groups).tolist():
            read = file.read_row_group(group, use_threads=False)
            flat = read.column("x").combine_chunks().flatten().to_numpy()
            x = torch.from_numpy(flat.reshape(-1, FEATURES).copy())
            y = torch.from_numpy(read.column("label").to_numpy().copy())
            for rows in torch.randperm(len(x)).split(BATCH):
                yield x[rows], y[rows]


def _tar(path: Path, samples: list[Sample]) -> str:
    with tarfile.open(path, "w") as tar:
        for number, fields in enumerate(samples):
            for field, raw in fields.items():
                info = tarfile.TarInfo(f"{number:08d}.{field}")
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
    return str(path)
