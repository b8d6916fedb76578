"""Which program works at which cell, so that two on one folder share the work.

Each program keeps a file in the hidden folder ``.claims`` that names its cells, and a lock of the
operating system on it. Whatever ends the program ends the lock too: there are no claims of the
dead, and no times to guess. Claims save work, no more; records are whole without them. Where files
cannot be locked (Windows, some network file systems), everybody may have every cell.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none

__all__ = ["Claims", "alone"]

_FOLDER, _LOCK = ".claims", "lock"


class Claims:
    """The cells of a folder that this program has; held until it is left, or the program ends.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> with Claims(place) as one, Claims(place) as other:
    ...     print(sorted(one.take(["a", "b"])), sorted(other.take(["b", "c"])))
    ['a', 'b'] ['c']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / _FOLDER / secrets.token_hex(8)
        self.file: int | None = None
        self.names: set[str] = set()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:
            # Nobody may find the file before its lock: that would look like a dead program's.
            with suppress(OSError), alone(self.folder):
                file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    self.path.unlink()
                    os.close(file)
                    raise
                self.file = file
        return self

    def __exit__(self, *error: object) -> None:
        if self.file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.file)
            self.file = None
            _tidy(self.folder)

    def take(self, names: Iterable[str]) -> set[str]:
        """Claim what no other program has of ``names``; returns those that are this one's."""
        wanted = set(names)
        if self.file is None or wanted <= self.names:
            return wanted
        with alone(self.folder):
            mine = wanted - self._others()
            self.names |= mine
            self.path.write_text(json.dumps(sorted(self.names)), encoding="utf-8")
        return mine

    def _others(self) -> set[str]:
        """What programs that are alive have claimed; what dead ones left is removed."""
        found: set[str] = set()
        for path in self.path.parent.iterdir():
            if path in (self.path, self.path.with_name(_LOCK)):
                continue
            with suppress(FileNotFoundError):  # its program ended just now
                if _locked(path):
                    found |= set(json.loads(path.read_text(encoding="utf-8") or "[]"))
                else:
                    path.unlink()
        return found


def _locked(path: Path) -> bool:
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One program at a time in here, for a folder; for moments, not for work.

    The lock is a file that is gone afterwards. Whoever waited for a file that has been removed
    since holds the lock of nothing, notices, and tries again.
    """
    if fcntl is None:
        yield
        return
    path = folder / _FOLDER / _LOCK
    while True:
        path.parent.mkdir(exist_ok=True)
        try:
            file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except FileNotFoundError:  # the hidden folder was removed just now
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.fstat(file).st_ino == path.stat().st_ino:
                    break
        except BaseException:
            os.close(file)
            raise
        os.close(file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove the hidden folder if nobody has a file in it."""
    with suppress(OSError):
        (folder / _FOLDER).rmdir()
