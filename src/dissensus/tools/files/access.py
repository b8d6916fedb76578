"""Access to files: only regular ones that memory can hold, and writing whole or not at all.

A FIFO or a device that is called ``x.png`` is refused before it is opened. Sizes are compared with
a limit before memory is allocated: :func:`max_bytes` for arrays and tables, and constants for text
that is parsed as a whole.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable
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
        most, otherwise = max_bytes() / 2**30, f"{advice}, or" if advice else "if you trust it,"
        gib = f"{needed / 2**30:.1f} GiB of memory, more than the limit of {most:.1f} GiB"
        raise ValueError(f"{what} would take {gib}; {otherwise} raise {MAX_BYTES_VARIABLE}")


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


def open_regular(path: str | Path, where: str = "") -> IO[bytes]:
    """A regular file, opened for reading in binary."""
    check_regular(path, where)
    try:
        return open(path, "rb", opener=_open_at_once)
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
        raise ValueError(f"{path} is larger than {most / 2**20:.0f} MiB, the most of its kind")
    return content


def damaged(where: str | Path, kind: str, error: Exception) -> ValueError:
    """The error for content that cannot be read as ``kind``."""
    python = ", or holds Python objects, which are never loaded" if kind[:3] == ".np" else ""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(
        f"{where} cannot be read as {kind}: it is damaged, cut short or another kind{python} "
        f"({reason[:300]})"
    )


# ---- writing -------------------------------------------------------------------------------------


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
    part = _part(path)
    # Made here, not by ``write``, so that two writers can never share it; mode as the umask says.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk names no file
        raise


def keep_copy(path: Path, copy: Path) -> None:
    """Make ``copy`` what ``path`` is now, if it exists; both are whole at every moment.

    The copy is a second link to the same file where the file system has links. A file that replaces
    ``path`` later leaves it unchanged.
    """
    part = _part(copy)
    try:
        try:
            os.link(path, part)
        except FileNotFoundError:
            return
        except OSError:
            shutil.copyfile(path, part)
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)  # it stays if both were links to one file before


def remove_parts(folder: Path) -> None:
    """Remove the half-written files that kills left in ``folder``; nobody may be writing to it."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_bytes(content))


def _part(path: Path) -> Path:
    """A new name for a half-written neighbour of ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
