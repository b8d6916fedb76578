"""Files: one reader and one writer for each format, and writing that is whole or not at all.

Every file that Dissensus writes goes through :func:`replace_atomically`: the content is written to
a neighbour, flushed to the disk, and renamed over the target. A kill at any moment leaves the old
file or the new one, never half of one. A file that cannot be read raises a ``ValueError`` that
names it, and what is too large for memory is refused before it is read. Nothing reads or writes
pickle.
"""

from dissensus.tools.files.access import (
    check_regular,
    check_size,
    damaged,
    keep_copy,
    max_bytes,
    open_regular,
    remove_parts,
    replace_atomically,
    write_bytes,
    write_text,
)
from dissensus.tools.files.arrays import ArrayHeader, read_npy, read_npz, write_npz
from dissensus.tools.files.lock import LOCK, lock_folder
from dissensus.tools.files.tensors import read_safetensors, verify_safetensors, write_safetensors
from dissensus.tools.files.text import (
    check_types,
    format_toml,
    parse_json,
    read_json,
    read_text,
    read_toml,
    write_csv,
)

__all__ = [
    "LOCK",
    "ArrayHeader",
    "check_regular",
    "check_size",
    "check_types",
    "damaged",
    "format_toml",
    "keep_copy",
    "lock_folder",
    "max_bytes",
    "open_regular",
    "parse_json",
    "read_json",
    "read_npy",
    "read_npz",
    "read_safetensors",
    "read_text",
    "read_toml",
    "remove_parts",
    "replace_atomically",
    "verify_safetensors",
    "write_bytes",
    "write_csv",
    "write_npz",
    "write_safetensors",
    "write_text",
]
