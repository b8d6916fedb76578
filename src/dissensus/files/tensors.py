"""Tensors in ``.safetensors`` files, with a checksum that is verified when they are read.

The checksum covers names, types, shapes, metadata and the bytes of all tensors. It stands in the
metadata, so that the files stay what other programs expect; files without one are read as they are.
It guards against damage, not against people. The same content gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dissensus.files.atomic import replace_atomically
from dissensus.files.opening import check_regular, damaged, open_regular
from dissensus.files.text import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["read_safetensors", "verify_safetensors", "write_safetensors"]

_CHECKSUM, _METADATA = "dissensus.checksum", "__metadata__"
_WORDS = 1 << 17  # of 64 bits, read at once
_MAX_HEADER = 100_000_000  # bytes, as safetensors has it


def read_safetensors(
    path: str | Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name and the metadata of the header, all of it verified.

    With ``names``, only these tensors are read, and nothing is verified.
    """
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            wanted = file.keys() if names is None else names
            tensors = {name: file.get_tensor(name) for name in wanted}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise damaged(path, "safetensors", error) from error
    if names is None and _CHECKSUM in metadata:
        verify_safetensors(path)
    return tensors, {key: value for key, value in metadata.items() if key != _CHECKSUM}


def verify_safetensors(path: str | Path) -> None:
    """Raise if the file holds a checksum, and another content; it is read in pieces."""
    with open_regular(path) as raw:
        header = parse_json(_read_header(raw), path, {})
        metadata = header.get(_METADATA)
        wanted = metadata.get(_CHECKSUM) if isinstance(metadata, dict) else None
        if wanted is not None and wanted != _checksum(raw, header):
            raise ValueError(f"{path} is damaged: its content does not match its checksum")


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write ``tensors``, the header's ``metadata`` and a checksum, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    flat: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in memory:  # safetensors refuses shared memory
            tensor = tensor.clone()
        memory.add(tensor.untyped_storage().data_ptr())
        flat[name] = tensor

    def write(part: Path) -> None:
        try:
            save_file(flat, part, metadata={**(metadata or {}), _CHECKSUM: "0" * 64})
        except SafetensorError as error:  # such as a full disk
            raise OSError(f"{path} cannot be written: {error}") from error
        _stamp(part)

    replace_atomically(path, write)


def _stamp(path: Path) -> None:
    """Put the checksum into the header, and the metadata in order: safetensors keeps none."""
    with path.open("rb+") as raw:
        text = _read_header(raw)
        header = json.loads(text)
        header[_METADATA][_CHECKSUM] = _checksum(raw, header)
        header[_METADATA] = dict(sorted(header[_METADATA].items()))
        new = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(new) > len(text):
            raise ValueError(f"the header of {path} has {len(new)} bytes, not {len(text)}")
        raw.seek(8)
        raw.write(new.ljust(len(text)))


def _read_header(raw: IO[bytes]) -> bytes:
    """The text of the header; the file is left where the bytes of tensors begin."""
    return raw.read(min(int.from_bytes(raw.read(8), "little"), _MAX_HEADER))


def _checksum(raw: IO[bytes], header: dict[str, Any]) -> str:
    """The sha256 of a header, but for the checksum in it, and of sums over the rest of the file.

    A sum is that of a piece's 64-bit words times odd numbers, modulo 2⁶⁴: no change of a single
    word leaves it the same, and another one does by chance alone. It is much faster than a hash.
    """
    import numpy as np

    metadata = {key: value for key, value in header[_METADATA].items() if key != _CHECKSUM}
    described = json.dumps({**header, _METADATA: metadata}, sort_keys=True)
    sha = hashlib.sha256(described.encode())
    while piece := raw.read(8 * _WORDS):
        words = np.frombuffer(piece.ljust(-(-len(piece) // 8) * 8, b"\0"), "<u8")
        sha.update(np.dot(words, _weights()[: len(words)]).tobytes())
    return sha.hexdigest()


@cache
def _weights() -> NDArray[np.uint64]:
    """Odd numbers, spread over all 64 bits by the golden ratio."""
    import numpy as np

    return np.arange(1, _WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
