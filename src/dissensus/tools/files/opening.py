"""Opening of files: only regular files, and no more of them than memory can hold.

A FIFO or a device that is called ``x.png`` is refused before it is opened. Sizes are compared with
a limit before memory is allocated: :func:`max_bytes` for arrays and tables, and constants for text
that is parsed as a whole.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

#: The environment variable that sets :func:`max_bytes`.
MAX_BYTES_VARIABLE = "DISSENSUS_MAX_BYTES"

_MAX_BYTES = 4 << 30
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def max_bytes() -> int:
    """The most memory that the content of one file may take: 4 GiB, or as the variable says."""
    text = os.environ.get(MAX_BYTES_VARIABLE, "")
    if not text:
        return _MAX_BYTES
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"{MAX_BYTES_VARIABLE} must be a number of bytes, got {text!r}") from None


def check_size(needed: int, what: str, advice: str = "") -> None:
    """Raise if ``what`` needs more memory than the content of one file may take."""
    if needed > max_bytes():
        raise ValueError(
            f"{what} would take {needed / 2**30:.1f} GiB of memory, more than the limit of "
            f"{max_bytes() / 2**30:.1f} GiB; {advice or 'if it is to be trusted'}"
            f"{', or' if advice else ','} set {MAX_BYTES_VARIABLE} to more bytes"
        )


def check_regular(path: str | Path, where: str = "") -> None:
    """Raise unless ``path`` is a regular file, or a link to one; errors call it ``where``."""
    name = where or path
    try:
        kind = stat.S_IFMT(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{name} cannot be read: {reason}") from error
    if kind != stat.S_IFREG:
        raise ValueError(f"{name} is not a file to read, but {_KINDS.get(kind, 'something else')}")


def open_regular(path: str | Path, where: str = "", buffering: int = -1) -> IO[bytes]:
    """A regular file, opened for reading in binary."""
    check_regular(path, where)
    try:
        return open(path, "rb", buffering, opener=_open_at_once)
    except OSError as error:
        raise ValueError(f"{where or path} cannot be read: {error.strerror or error}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, for a FIFO that has taken the file's place since it was checked."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_regular(path: str | Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > most:
        raise ValueError(
            f"{path} is too large: a file of its kind has at most {most / 2**20:.0f} MiB"
        )
    return content


def damaged(where: str | Path, kind: str, error: Exception) -> ValueError:
    """The error for content that cannot be read as ``kind``."""
    python = ", or holds Python objects, which are never loaded" if kind[:3] == ".np" else ""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(
        f"{where} cannot be read as {kind}: it is damaged, cut short or of another kind{python} "
        f"({reason[:300]})"
    )
