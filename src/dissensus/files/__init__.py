"""Files: one reader and one writer for each format, and writing that is whole or not at all.

Every file that Dissensus writes goes through :func:`replace_atomically`: the content is written to
a neighbour, flushed to the disk, and renamed over the target. A kill at any moment leaves the old
file or the new one, never half of one. A file that cannot be read raises a ``ValueError`` that
names it. Nothing reads or writes pickle.
"""

from dissensus.files.arrays import read_npy, read_npz, write_npz
from dissensus.files.atomic import replace_atomically, write_bytes, write_text
from dissensus.files.lock import LOCK, lock_folder
from dissensus.files.tensors import read_safetensors, write_safetensors
from dissensus.files.text import format_toml, read_json, read_toml, write_csv

__all__ = [
    "LOCK",
    "format_toml",
    "lock_folder",
    "read_json",
    "read_npy",
    "read_npz",
    "read_safetensors",
    "read_toml",
    "replace_atomically",
    "write_bytes",
    "write_csv",
    "write_npz",
    "write_safetensors",
    "write_text",
]
