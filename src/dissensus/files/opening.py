"""Opening of files for the readers: what cannot be read is an error that names the file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["unreadable"]


def unreadable(
    source: str | Path | bytes, kind: str, error: Exception, where: str = ""
) -> ValueError:
    """The error for a file, or bytes called ``where``, that is no ``kind`` that can be read."""
    name = where or ("data" if isinstance(source, bytes) else str(source))
    if not isinstance(source, bytes) and not Path(source).is_file():
        return ValueError(f"there is no file {name}")
    python = ", or holds Python objects, which are never loaded" if kind[:3] == ".np" else ""
    return ValueError(
        f"{name} cannot be read as {kind}: it is damaged, cut short or of another kind{python} "
        f"({error})"
    )
