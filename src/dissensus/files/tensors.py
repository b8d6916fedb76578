"""Tensors in ``.safetensors`` files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dissensus.files.atomic import replace_atomically
from dissensus.files.opening import check_regular, damaged

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read_safetensors", "write_safetensors"]


def read_safetensors(
    path: str | Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, all or those of ``names``, and the metadata of the header."""
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            wanted = file.keys() if names is None else names
            tensors = {name: file.get_tensor(name) for name in wanted}
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise damaged(path, "safetensors", error) from error


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
