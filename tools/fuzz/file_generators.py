"""File generators: each yields a name and the bytes of a hostile file, from a fixed seed."""

import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

File = tuple[str, bytes]

DEEP = 200_000
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\n<img src=x onerror=alert(1)>|`[b](http://x)"


def damage(name: str, content: bytes, rng: random.Random) -> Iterator[File]:
    """Endlessly many damaged versions of a good file: flipped, cut, doubled, overwritten."""
    yield f"empty-{name}", b""
    while True:
        spoilt = bytearray(content)
        place = rng.randrange(len(spoilt))
        kind = rng.choice(["flip", "cut", "double", "zero", "noise", "swap"])
        match kind:
            case "flip":
                for _ in range(rng.choice([1, 1, 3, 20])):
                    spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            case "cut":
                del spoilt[place:]
            case "double":
                spoilt[place:place] = spoilt[: rng.randrange(1, 200)]
            case "zero":
                spoilt[place : place + 40] = bytes(40)
            case "noise":
                spoilt[place : place + 8] = rng.randbytes(8)
            case "swap":
                other = rng.randrange(len(spoilt))
                spoilt[place], spoilt[other] = spoilt[other], spoilt[place]
        yield f"{kind}-{name}", bytes(spoilt)


def other_type(suffix: str, content: bytes, rng: random.Random) -> bytes:
    """The file with one value of another type."""
    other = rng.choice(["5", '"[/b]"', "[]", "[1, [2]]", "-1", "1e300", "true", '"\\u001b[2J"'])
    lines = content.decode().splitlines()
    if suffix == ".toml":
        places = [number for number, line in enumerate(lines) if " = " in line]
        place = rng.choice(places)
        lines[place] = f"{lines[place].partition(' = ')[0]} = {other}"
        return "\n".join(lines).encode()
    value = json.loads(lines[0] if suffix == ".jsonl" else content)
    inner, key = value, rng.choice(list(value))
    while isinstance(inner[key], dict) and inner[key] and rng.random() < 0.7:
        inner = inner[key]
        key = rng.choice(list(inner))
    inner[key] = json.loads(other)
    return json.dumps(value).encode()


# ---- text ---------------------------------------------------------------------------------------


def json_files() -> Iterator[File]:
    """JSON that is nested deep, of another type, or not JSON."""
    texts = {
        "deep-list": "[" * DEEP + "]" * DEEP,
        "deep-mapping": '{"a":' * DEEP + "1" + "}" * DEEP,
        "deep-enough": "[" * 500 + "]" * 500,
        "open": "[" * DEEP,
        "number": "5",
        "list": "[]",
        "nan": "NaN",
        "infinity": '{"value": 1e999}',
        "null": "null",
        "text": '"text"',
        "digits": '{"value": ' + "9" * 4000 + "}",
        "more-digits": "9" * 5000,
        "surrogate": '{"name": "\\ud800", "\\ud800": 1}',
        "escapes": json.dumps({"name": ESCAPES, ESCAPES: ESCAPES}),
        "twice": '{"format": 1, "format": [2]}',
        "bom": "\ufeff{}",
        "nul": "{}\x00",
    }
    yield from ((name, text.encode()) for name, text in texts.items())
    yield "latin", b'{"name": "\xe9"}'
    yield "utf-16", '{"a": 1}'.encode("utf-16")


def toml_files() -> Iterator[File]:
    """TOML that is nested deep, slow to parse, or not TOML."""
    texts = {
        "deep-list": "a = " + "[" * 50_000 + "]" * 50_000,
        "deep-table": "a = " + "{a = " * 5_000 + "1" + "}" * 5_000,
        "deep-enough": "a = " + "[" * 200 + "]" * 200,
        "long-key": ".".join("a" * 100_000) + " = 1",
        "long-quoted-key": " . ".join(['"a"'] * 50_000) + " = 1",
        "long-header": "[" + ".".join("a" * 100_000) + "]",
        "nan": "members = nan",
        "digits": "members = " + "9" * 4000,
        "more-digits": "members = " + "9" * 5000,
        "large": "#" + "x" * (2 << 20),
        "twice": "a = 1\na = 2",
    }
    yield from ((name, text.encode()) for name, text in texts.items())
    yield "latin", b'name = "\xe9"'


# ---- arrays -------------------------------------------------------------------------------------


def npy(array: np.ndarray) -> bytes:
    """An array as the bytes of an ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(text: str, version: int = 1, length: int | None = None) -> bytes:
    """The beginning of an ``.npy`` file with this header."""
    width = "<H" if version == 1 else "<I"
    size = struct.pack(width, len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode()


def npz(
    members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED, flags: int = 0
) -> bytes:
    """A zip of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    raw = bytearray(buffer.getvalue())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = raw.find(signature)
        while flags and place >= 0:
            raw[place + offset] |= flags
            place = raw.find(signature, place + 4)
    return bytes(raw)


def npy_files() -> Iterator[File]:
    """Arrays whose headers lie or nest."""
    shape = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
    yield "shape", npy_header(shape % "(1000000000000, 1000000)")
    yield "negative", npy_header(shape % "(-1,)") + bytes(8)
    yield "overflow", npy_header(shape % f"({2**62}, 8)")
    yield "nested", npy_header("(" * 5000)
    yield "brackets", npy_header(shape % ("(" * 300 + ")" * 300))
    yield "long", npy_header("x", 2, length=2**32 - 1)
    yield "version", npy_header("x", 9)
    yield "type", npy_header(shape.replace("<f4", "O") % "(1,)") + bytes(8)
    yield "kind", npy_header(shape.replace("'<f4'", "5") % "(1,)") + bytes(8)
    yield "void", npy_header(shape.replace("<f4", "V0") % "(99999999999,)")
    yield "text", b"\x93NUMPY"


def npz_files() -> Iterator[File]:
    """Archives that are bombs, encrypted, of foreign compression, or hold something else."""
    good = npy(np.zeros((4, 3), np.float32))
    for name, content in npy_files():
        yield name, npz({"x.npy": content})
    yield "encrypted", npz({"x.npy": good}, flags=1)
    yield "lzma", npz({"x.npy": good}, zipfile.ZIP_LZMA)
    yield "bzip2", npz({"x.npy": good}, zipfile.ZIP_BZIP2)
    yield "foreign", npz({"x.npy": good, "readme.txt": b"hello"})
    yield "pickle", npz({"x.npy": good, "data.pkl": b"cos\nsystem\n."})
    raw = bytearray(npz({"x.npy": good * 50}))
    raw[60:80] = b"\xff" * 20
    yield "deflate", bytes(raw)
    yield "nothing", npz({})
    yield "stored-bomb", bomb()


def bomb(rows: int = 2 << 30) -> bytes:
    """A small ``.npz`` whose array would take ``4 · rows`` bytes; only its start is there."""
    header = npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows},)}}")
    packed = zlib.compress(header + bytes(1 << 20))[2:-4]
    size, name = len(header) + 4 * rows, b"x.npy"
    extra = struct.pack("<HHQ", 1, 8, size)
    common = struct.pack("<HHHHHIIIHH", 45, 0, 8, 0, 0, 0, len(packed), 2**32 - 1, 5, 12)
    local = b"PK\x03\x04" + common[:-2] + struct.pack("<H", 0) + name
    central = b"PK\x01\x02\x2d\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name + extra
    start = len(local) + len(packed)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), start, 0)
    return local + packed + central + end


# ---- tables and images --------------------------------------------------------------------------


def csv_files() -> Iterator[File]:
    """Tables with giant cells, other encodings and broken rows."""
    yield "cell", b"a,b\n" + b"x" * 200_000 + b",1\n"
    yield "quote", b'a,b\n"' + b"x" * 300_000
    yield "latin", b"a,b\n\xe9,1\n"
    yield "rows", b"a,b\n1\n"
    yield "nul", b"a,b\n\x00,1\n2,3\n"
    yield "empty", b""
    yield "names", f"a,{ESCAPES!r},c\n1,2,3\n".encode()
    yield "twice", b"a,a\n1,2\n"


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG whose header claims this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def image_files() -> Iterator[File]:
    """Pictures that are larger than they look, or none."""
    yield "wide.png", png(60_000, 1, bytes(60_001))
    yield "tall.png", png(1, 60_000, bytes(120_000))
    yield "huge.png", png(2**31 - 1, 2**31 - 1)
    yield "large.png", png(20_000, 20_000)
    yield "nothing.png", png(0, 5)
    yield "cut.png", png(100, 100)[:50]
    yield "text.png", b"hello"
    yield "gif.png", b"GIF89a" + bytes(100)
    yield "eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    yield "tiff.tif", b"II*\x00\x08\x00\x00\x00\xff\xff" + bytes(range(256)) * 20
    yield "ppm.ppm", b"P6\n99999999 99999999\n255\n"
    yield "bmp.bmp", b"BM" + struct.pack("<IHHIIiiHHI", 99, 0, 0, 54, 40, 2**31 - 1, -9, 1, 1, 0)


def picture(kind: str) -> bytes:
    """A small image in a format of Pillow."""
    from PIL import Image

    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def shard() -> bytes:
    """A tar of six samples with a vector and a label each."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(6):
            fields = {"npy": npy(np.ones(3, np.float32)), "cls": str(number % 2).encode()}
            for field, content in fields.items():
                info = tarfile.TarInfo(f"{number:03}.{field}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def parquet() -> bytes:
    """A table of numbers and labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [0.5] * 20, "b": [1] * 20, "y": ["x", "z"] * 10}), buffer)
    return buffer.getvalue()


def good_files(folder: Path) -> dict[str, bytes]:
    """One small good file of each kind, to be damaged."""
    import torch

    from dissensus.tools.files import write_safetensors

    file = folder / "good.safetensors"
    tensors = {"outputs": torch.zeros(2, 4, 3), "targets": torch.zeros(4).long()}
    write_safetensors(file, tensors, {"format": "dissensus.predictions/1", "meta": "{}"})
    array = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    record = {"name": "a", "rows": {"train": 5}, "values": [1.5, None, True]}
    images = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "webp": "WEBP", "tif": "TIFF"}
    return {
        "json": json.dumps(record).encode(),
        "toml": b'[data]\nname = "digits"\n[ensemble]\nmembers = 3\n[training]\nlr = 0.1\n',
        "npy": npy(array),
        "npz": npz({"x.npy": npy(array), "y.npy": npy(np.arange(8))}),
        "csv": b"a,b,y\n" + b"1,2,x\n2,1,z\n" * 10,
        "safetensors": file.read_bytes(),
        "tar": shard(),
        "parquet": parquet(),
        **{suffix: picture(kind) for suffix, kind in images.items()},
    }


GENERATORS: dict[str, Callable[[], Iterator[File]]] = {
    "json": json_files,
    "toml": toml_files,
    "npy": npy_files,
    "npz": npz_files,
    "csv": csv_files,
    "png": image_files,
}
