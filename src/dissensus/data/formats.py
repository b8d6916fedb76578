"""Readers of file formats, one for each: idx, CIFAR, .mat, CSV, Parquet, images.

:mod:`dissensus.tools.files` has those of .npz and .npy.
None of them runs code that a file contains: arrays of Python objects are refused, and Pillow opens
only the image formats that are listed here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.dataset import missing_extra
from dissensus.tools.files import check_regular, check_size, open_regular

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


# ---- arrays -------------------------------------------------------------------------------------


def read_idx(raw: bytes, where: str) -> Bytes:
    """The array of an idx file of bytes: two zeros, a type code, the axes, their sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]), "toy")
    array([5, 6, 7], dtype=uint8)
    """
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{where} is not an idx file of bytes: it starts with {raw[:4].hex()!r}")
    axes = raw[3]
    shape = tuple(np.frombuffer(raw, ">u4", min(axes, (len(raw) - 4) // 4), 4).tolist())
    values = np.frombuffer(raw, np.uint8, offset=min(len(raw), 4 + 4 * axes))
    if len(shape) != axes or values.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{where} is cut short: {values.size} bytes for the shape {shape}")
    return values.reshape(shape)


def read_cifar(raw: bytes, where: str, label_bytes: int = 1) -> tuple[Bytes, Bytes]:
    """Images and labels from records of ``label_bytes`` labels and 3 × 32 × 32 bytes.

    Of several labels the last is the fine one.

    >>> read_cifar(bytes([7]) + bytes(3072), "toy")[1]
    array([7], dtype=uint8)
    """
    record = label_bytes + 3 * 32 * 32
    if not raw or len(raw) % record:
        raise ValueError(
            f"{where} is not a CIFAR binary file; the Python version (pickle) is not read"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_mat(raw: bytes, where: str, names: Sequence[str]) -> list[Array]:
    """Variables of a MATLAB file."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(io.BytesIO(raw), variable_names=list(names))
        return [np.asarray(file[name]) for name in names]
    except (MatReadError, ValueError, TypeError, LookupError, OSError, RuntimeError) as error:
        wanted = " and ".join(names)
        raise ValueError(f"{where} must be a .mat file with {wanted} ({error!r})") from error


# ---- tables -------------------------------------------------------------------------------------

#: The suffixes of tables.
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

#: Cells that stand for a missing value; compared without case and surrounding spaces.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_SEPARATORS = ",;\t|"

#: What a cell takes in memory as text, and how much more memory than its size a CSV file needs.
_CELL_BYTES, _CSV_EXPANSION = 64, 8
#: Parquet is read in pieces of so many rows, as a few long texts can stand in many of them.
_BATCH_ROWS = 4096


def is_missing(value: str) -> bool:
    """Whether a cell says that there is no value."""
    return value.strip().lower() in MISSING


def missing_counts(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The number of missing values of each column that has some.

    >>> missing_counts({"a": ["1", "?"], "b": ["2", "3"]})
    {'a': 1}
    """
    counts = {name: sum(map(is_missing, values)) for name, values in columns.items()}
    return {name: count for name, count in counts.items() if count}


def complete_rows(columns: Mapping[str, Sequence[str]]) -> NDArray[np.int64]:
    """The numbers of the rows that lack no value."""
    gaps = np.array([[is_missing(value) for value in values] for values in columns.values()])
    return np.flatnonzero(~gaps.any(0)).astype(np.int64)


def list_names(names: Iterable[str]) -> str:
    """Names of columns for a message: the first thirty."""
    every = list(names)
    more = f" and {len(every) - 30} more" if len(every) > 30 else ""
    return ", ".join(every[:30]) + more


def read_columns(path: Path, *, header: bool = True) -> dict[str, list[str]]:
    """The columns of a .csv, .tsv or .parquet file by name, as text; gaps are empty."""
    if not path.exists():
        raise ValueError(f"there is no table {path}")
    check_regular(path)
    if path.suffix == ".parquet":
        return _parquet_columns(path)
    check_size(path.stat().st_size * _CSV_EXPANSION, str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    return parse_separated(text, str(path), header=header)


def _parquet_columns(path: Path) -> dict[str, list[str]]:
    """All columns as text; what the footer says about their number is checked first."""
    file = open_parquet(path)
    rows, columns = file.metadata.num_rows, file.metadata.num_columns
    check_size(
        rows * columns * _CELL_BYTES, f"{path}, a table of {rows} rows and {columns} columns"
    )
    texts: dict[str, list[str]] = {str(name): [] for name in file.schema_arrow.names}
    needed = 0
    for batch in _batches(file, path):
        needed += batch.nbytes
        check_size(needed, str(path))
        for name, column in zip(texts, batch.columns, strict=True):
            values = column.to_pylist()
            texts[name] += ["" if value is None else str(value) for value in values]
    return texts


def _batches(file: Any, path: Path) -> Iterator[Any]:
    try:
        yield from file.iter_batches(batch_size=_BATCH_ROWS)
    except Exception as error:  # Arrow raises all kinds for damaged files
        raise ValueError(f"{path} cannot be read as Parquet ({error})") from error


def parse_separated(
    text: str, where: str, *, header: bool | Sequence[str] = True
) -> dict[str, list[str]]:
    """Columns of a table separated by comma, semicolon, tab or bar, whichever its first line has.

    ``header=True`` takes names from the first line, ``False`` makes ``column_0``, …; a sequence
    gives them.

    >>> parse_separated("a;b\\r\\n1;2\\r\\n3;4\\r\\n", "toy.csv")
    {'a': ['1', '3'], 'b': ['2', '4']}
    """
    text = text.removeprefix("\ufeff")
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        raise ValueError(f"{where} is no table: line {lines.line_num}: {error}") from error
    if not rows:
        raise ValueError(f"{where} is empty")
    if header is True:
        names = [name.strip() for name in rows.pop(0)]
    elif header is False:
        names = [f"column_{i}" for i in range(len(rows[0]))]
    else:
        names = list(header)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} names columns twice: {', '.join(twice)}; rename them")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(
                f"{where}: data row {number + 1} has {len(row)} values, the header "
                f"{len(names)}; the separator was taken to be {separator!r}"
            )
    if not rows:
        raise ValueError(f"{where} has a header and no rows")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def open_parquet(path: Path | str) -> Any:
    """A Parquet file (``pyarrow.parquet.ParquetFile``), of which nothing has been read."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("a .parquet file", "pyarrow", '"dissensus[tables]"') from error
    check_regular(path)
    try:
        return pyarrow.parquet.ParquetFile(path)
    except Exception as error:  # Arrow raises all kinds for damaged files
        raise ValueError(f"{path} cannot be read as Parquet ({error})") from error


# ---- images -------------------------------------------------------------------------------------

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})

#: The most pixels of an image, before and after it is scaled, where ``max_pixels`` says nothing.
MAX_PIXELS = 64_000_000


def open_image(source: Path | IO[bytes], where: str, max_pixels: int = MAX_PIXELS) -> Any:
    """An image in RGB, as Pillow has it; ``where`` names it in errors.

    Its header is read first: an image of more than ``max_pixels`` is not decoded.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("reading images", "Pillow", "pillow") from error
    with open_regular(source, where) if isinstance(source, Path) else source as file:
        try:
            with Image.open(file, formats=_image_formats()) as opened:  # its header alone
                size = opened.size
                if size[0] * size[1] <= max_pixels:
                    return _eight_bits(opened).convert("RGB")
        except Exception as error:  # decoders raise all kinds for damaged images
            raise ValueError(f"{where} cannot be read as an image ({error})") from error
    raise _too_large(where, *size, max_pixels)


def _eight_bits(image: Any) -> Any:
    """An image of at most 8 bits a channel; Pillow itself would cut 16 bits off at 255."""
    from PIL import Image

    if image.mode[0] not in "IF":
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.max() > 0xFFFF:
        raise ValueError(f"its mode {image.mode} has no range; save it with 8 or 16 bits")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))


def _too_large(where: str, width: int, height: int, most: int) -> ValueError:
    return ValueError(f"{where} has {width} × {height} pixels, more than max_pixels={most} allows")


@cache
def _image_formats() -> tuple[str, ...]:
    """Pillow's names of the formats of :data:`IMAGE_SUFFIXES`; some others start programs."""
    from PIL import Image

    Image.init()
    known = ("JPEG", "MPO", "PNG", "BMP", "WEBP", "TIFF", "PPM")
    return tuple(name for name in known if name in Image.OPEN)


def decode_image(
    source: Path | IO[bytes], size: int, where: str = "", max_pixels: int = MAX_PIXELS
) -> Bytes:
    """The middle of an image, uint8 ``[3, size, size]``.

    Its shorter side is scaled to ``size · 256/224`` first: ImageNet's evaluation protocol. An image
    that has more than ``max_pixels``, or would have when it is scaled, is an error.
    """
    where = where or str(source)
    image = open_image(source, where, max_pixels)
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if width * height > max_pixels:
        raise _too_large(f"{where}, scaled for size={size},", width, height, max_pixels)
    image = image.resize((width, height), 2)  # bilinear
    left, top = (width - size) // 2, (height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.transpose(2, 0, 1)
