"""Files: one reader and one writer for each format, and writing that is whole or not at all.

Every file that Dissensus writes goes through :func:`replace_atomically`: the content is written to
a neighbour, flushed to the disk, and renamed over the target. A kill at any moment leaves the old
file or the new one, never half of one. A file that cannot be read raises a ``ValueError`` that
names it. Nothing reads or writes pickle.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "format_toml",
    "read_json",
    "read_npy",
    "read_npz",
    "read_safetensors",
    "read_toml",
    "replace_atomically",
    "write_bytes",
    "write_csv",
    "write_npz",
    "write_safetensors",
    "write_text",
]

_NPY_1 = b"\x93NUMPY\x01\x00"

#: What a damaged file makes NumPy, zipfile, zlib and the decoders raise.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def replace_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary neighbour of ``path``, then rename it over ``path``.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> replace_atomically(target, lambda file: file.write_text("whole"))
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('whole', 1)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    # Made here, not by ``write``, so that two writers can never share it; mode as the umask says.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    mode = part.stat().st_mode
    try:
        write(part)
        # Some writers put a file of their own, and of their own mode, in its place.
        part.chmod(mode)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_bytes(content))


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- text ---------------------------------------------------------------------------------------


def read_json(path: str | Path) -> Any:
    """The value of a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, "JSON", error) from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, "TOML", error) from error


def format_toml(values: dict[str, Any]) -> str:
    """Plain values and one level of sections as TOML; None is left out.

    >>> print(format_toml({"name": "a", "training": {"epochs": 3, "milestones": [1, 2]}}))
    name = "a"
    <BLANKLINE>
    [training]
    epochs = 3
    milestones = [1, 2]
    <BLANKLINE>
    """
    lines = [
        f"{_toml_key(key)} = {_toml_value(key, value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, dict)
    ]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{_toml_key(key)}]"]
            lines += [
                f"{_toml_key(inner)} = {_toml_value(inner, item)}"
                for inner, item in value.items()
                if item is not None
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if bare else _toml_string(key)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for pairs of surrogates and a control character it leaves.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{key} must be finite, got {value}")
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str | Path):
        return _toml_string(str(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(key, item) for item in value) + "]"
    raise ValueError(f"{key} cannot be written to TOML, got {type(value).__name__}")


def write_csv(path: str | Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as CSV, whole or not at all."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)

    replace_atomically(path, write)


# ---- arrays -------------------------------------------------------------------------------------


def read_npz(source: str | Path | bytes, where: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, or of its bytes, by name; errors call it ``where``."""
    import numpy as np

    try:
        with _opened(source) as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise _unreadable(source, ".npz", error, where) from error


def read_npy(source: str | Path | bytes, where: str = "") -> NDArray[Any]:
    """The array of an ``.npy`` file, or of its bytes; errors call it ``where``."""
    import numpy as np

    try:
        if isinstance(source, bytes) and source[:8] == _NPY_1:
            header = 10 + int.from_bytes(source[8:10], "little")
            if header <= len(source):
                dtype, shape, fortran = _npy_header(source[:header])
                flat = np.frombuffer(source, dtype, offset=header)
                return flat.reshape(shape, order="F" if fortran else "C")
        with _opened(source) as raw:
            array = np.load(raw, allow_pickle=False)
            if isinstance(array, np.ndarray):
                return array
            raise ValueError("it is an .npz file under another name")
    except _UNREADABLE as error:
        raise _unreadable(source, ".npy", error, where) from error


def _opened(source: str | Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")


@lru_cache(maxsize=256)
def _npy_header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Type, shape and order; samples have few different headers, and parsing them is slow."""
    import numpy as np

    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(head[8:]))
    if dtype.hasobject:
        raise ValueError("its type is object")
    return dtype, shape, fortran


def write_npz(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], *, compress: bool = True
) -> None:
    """Write ``arrays`` to an ``.npz`` file, whole or not at all."""
    import numpy as np

    def write(part: Path) -> None:
        save = np.savez_compressed if compress else np.savez
        with part.open("wb") as file:
            save(file, **arrays)  # type: ignore[arg-type]

    replace_atomically(path, write)


# ---- tensors ------------------------------------------------------------------------------------


def read_safetensors(
    path: str | Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, all or those of ``names``, and the metadata of the header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            wanted = file.keys() if names is None else names
            tensors = {name: file.get_tensor(name) for name in wanted}
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, "safetensors", error) from error


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write ``tensors`` and the header's ``metadata``, whole or not at all."""
    from safetensors.torch import save_file

    flat: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in memory:  # safetensors refuses shared memory
            tensor = tensor.clone()
        memory.add(tensor.untyped_storage().data_ptr())
        flat[name] = tensor
    replace_atomically(path, lambda part: save_file(flat, part, metadata=metadata))


def _unreadable(
    source: str | Path | bytes, kind: str, error: Exception, where: str = ""
) -> ValueError:
    name = where or ("data" if isinstance(source, bytes) else str(source))
    if not isinstance(source, bytes) and not Path(source).is_file():
        return ValueError(f"there is no file {name}")
    python = ", or holds Python objects, which are never loaded" if kind[:3] == ".np" else ""
    return ValueError(
        f"{name} cannot be read as {kind}: it is damaged, cut short or of another kind{python} "
        f"({error})"
    )
