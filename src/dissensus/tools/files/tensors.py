"""Tensors in ``.safetensors`` files, with a checksum that is verified when they are read.

The checksum covers names, types, shapes, metadata and the bytes of all tensors. It stands in the
metadata, so that other programs can read the files; files without one are read unverified. It
detects damage, not forgery. The same content gives the same bytes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.tools.files.access import (
    check_regular,
    damaged,
    open_regular,
    replace_atomically,
)
from dissensus.tools.files.text import parse_json

if TYPE_CHECKING:
    from torch import Tensor

_CHECKSUM, _METADATA = "dissensus.crc32", "__metadata__"
_PIECE = 1 << 20  # bytes that are read at once
_MAX_HEADER = 100_000_000  # bytes, as safetensors has it

#: What safetensors calls the types of torch, in the order in which tensors stand in a file: the
#: largest first, so that each is aligned.
_TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


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
    """Raise if the content does not match the file's checksum, if it has one."""
    with open_regular(path) as raw:
        size = min(int.from_bytes(raw.read(8), "little"), _MAX_HEADER)
        header = parse_json(raw.read(size), path, {})
        metadata = header.get(_METADATA)
        wanted = metadata.get(_CHECKSUM) if isinstance(metadata, dict) else None
        if wanted is not None and wanted != _checksum(header, iter(partial(raw.read, _PIECE), b"")):
            raise ValueError(f"{path} is damaged: its content does not match its checksum")


def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write ``tensors``, the header's ``metadata`` and a checksum, whole or not at all.

    The file is that of ``safetensors.torch.save_file``, with its metadata in order. The checksum is
    taken from memory, and everything is written once.
    """
    header: dict[str, Any] = {_METADATA: metadata or {}}
    content: list[memoryview] = []
    types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    for name, kind in types.items():
        if kind not in _TYPES:
            raise ValueError(f"{path} cannot hold the tensor {name!r} of type {kind}")
    order = list(_TYPES)
    end = 0
    for name in sorted(tensors, key=lambda name: (order.index(types[name]), name)):
        content.append(_bytes(tensors[name]))
        begin, end = end, end + len(content[-1])
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _TYPES[types[name]], "shape": shape, "data_offsets": [begin, end]}
    checksum = _checksum(header, content)
    header[_METADATA] = dict(sorted({**header[_METADATA], _CHECKSUM: checksum}.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # numbers stand at multiples of their size

    def write(part: Path) -> None:
        with part.open("wb") as raw:
            raw.write(len(text).to_bytes(8, "little") + text)
            for tensor in content:
                raw.write(tensor)

    replace_atomically(path, write)


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor, without a copy where it is contiguous and on the CPU."""
    import torch

    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _checksum(header: dict[str, Any], content: Iterable[bytes | memoryview]) -> str:
    """The CRC-32 of a header, but for the checksum in it, and of all bytes after it.

    It finds every change of one or two bits in files up to 512 MB, and every one within 32 bits in
    a row; of other damage it misses 1 in 2³². It is twice as fast as a cryptographic hash.
    """
    metadata = {key: value for key, value in header[_METADATA].items() if key != _CHECKSUM}
    crc = zlib.crc32(json.dumps({**header, _METADATA: metadata}, sort_keys=True).encode())
    for piece in content:
        crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"
