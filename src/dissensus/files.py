"""Files that are either whole or not there.

Every file that Dissensus writes goes through :func:`replace_atomically`: the content is written to
a neighbour, flushed to the disk, and renamed over the target. A kill at any moment leaves the old
file or the new one, never half of one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["replace_atomically", "write_npz", "write_text"]


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
        part.chmod(
            mode
        )  # some writers put a file of their own, and of their own mode, in its place
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


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write NumPy arrays by name to a compressed ``.npz``, whole or not at all."""
    import numpy as np

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    replace_atomically(path, write)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
