"""Lock of a folder: one writer at a time, by a lock of the operating system on an open file.

The kernel releases the lock with the process that holds it, whatever ends that process: a kill or
a power cut leaves a file that nobody holds, and no stale lock. The file names the process for the
message to others, and is removed on release.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

#: The file in a folder that is locked.
LOCK = ".dissensus.lock"

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
msvcrt: Any = import_module("msvcrt") if find_spec("msvcrt") else None  # Windows

_SECONDS_TO_DIE = 1.0  # that a process which was killed just now may take
_SECONDS_BETWEEN_TRIES = 0.01
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # a link could name any file, and this one is written
_BYTE = 1 << 30  # Windows locks this one, so that others can read the name before it

#: The locks of this process, by the real path of their file: the thread and the open file.
_held: dict[str, tuple[int, int]] = {}


@contextmanager
def lock_folder(
    folder: str | Path,
    on_first: Callable[[Callable[[], None]], None] = lambda work: work(),
    *,
    name: str = LOCK,
    wait: float | None = None,
) -> Iterator[None]:
    """Keep other processes and threads from entering this context for the same ``folder``.

    They get a ``ValueError`` after ``wait`` seconds, by default one. The same thread may enter
    again. Of several ranks the first takes the lock, through ``on_first``. A missing folder is
    made, and removed if it is still empty. File systems without locks are not locked.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with lock_folder(folder), lock_folder(folder):
    ...     os.listdir(folder)
    ['.dissensus.lock']
    >>> os.listdir(folder)
    []
    """
    with ExitStack() as stack:

        def take() -> None:
            seconds = _SECONDS_TO_DIE if wait is None else wait
            stack.enter_context(_hold(Path(folder), name, seconds))

        on_first(take)
        yield


@contextmanager
def _hold(folder: Path, name: str, wait: float) -> Iterator[None]:
    path, thread = folder / name, threading.get_ident()
    key = os.path.realpath(path)
    if key in _held and _held[key][0] == thread:
        yield
        return
    new = _make_folders(folder)
    try:
        file = _acquire(path, key, time.monotonic() + wait)
        try:
            yield
        finally:
            _release(path, key, file)
    finally:
        for empty in new:
            with suppress(OSError):  # something was written
                empty.rmdir()


def _make_folders(folder: Path) -> list[Path]:
    """Make ``folder`` and those above it; return the new ones, the innermost first."""
    new = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return new


def _acquire(path: Path, key: str, deadline: float) -> int:
    while True:
        try:
            file = os.open(path, os.O_CREAT | os.O_RDWR | _NO_LINK, 0o666)
        except FileNotFoundError:  # another process removed the empty folder just now
            _make_folders(path.parent)
            continue
        except OSError as error:
            raise _cannot_write(path.parent, error) from error
        try:
            if _try_lock(file) and _is_at(file, path):
                _held[key] = threading.get_ident(), file
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return file
            if time.monotonic() > deadline:
                who = os.read(file, 200).decode(errors="replace") or "another process"
                folder = path.parent
                raise ValueError(f"{who} is writing to {folder}; wait, or choose another folder")
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _try_lock(file: int) -> bool:
    """Whether the lock is ours now; True also where the file system knows no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(file, _BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name; its last owner removes it."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _release(path: Path, key: str, file: int) -> None:
    if _held.get(key, (0, -1))[1] != file:
        return  # in a process that was forked meanwhile, which has no part in the lock
    del _held[key]
    if os.name != "nt":
        path.unlink(missing_ok=True)
    os.close(file)
    if os.name == "nt":  # where open files cannot be removed
        with suppress(OSError):
            path.unlink()


def _forget() -> None:
    """In a forked process: it must not keep the lock when its parent ends."""
    for _, file in _held.values():
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _cannot_write(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"cannot write to {folder}: {error.strerror or error}")
