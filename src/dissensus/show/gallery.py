"""Galleries: inputs on which members agree least and most, and inputs before and after an attack.

Images are PNG inside the page, by a writer of a few lines.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from dissensus.show.contents import Contents, Images, Method, Record, Reference
from dissensus.show.figure import short
from dissensus.show.figures import FIGURES
from dissensus.show.html import Elements, Html, element, join_html, missing, scroll_box

#: Pictures of one method, and where they come from.
_Part = tuple[list[Html], Reference]


def divergent_gallery(contents: Contents, make: Elements) -> Html:
    """The most and least divergent inputs of each method (ldr, Fig. 3)."""
    lead = (
        "In bold the ensemble's prediction, then what dissenting members predict instead, the "
        "truth, and the score."
    )
    title = "Inputs that divide members most and least"
    return _gallery(contents, make, title, lead, _divergent_part, FIGURES["roc"].needs)


def strangers_gallery(contents: Contents, make: Elements) -> Html:
    """Training images, and the strangers made of them; nothing where there are none."""
    lead = (
        "Strangers are made from each training batch: they keep its strokes and textures, and are "
        "none of its classes. Members learn to disagree on them, and then disagree on unknown "
        "inputs too."
    )
    return _gallery(contents, make, "Strangers", lead, _strangers_part)


def attack_gallery(contents: Contents, make: Elements) -> Html:
    """Originals above what attacks made of them, in one table for each method."""
    lead = "Images that most attacks broke, each with the ensemble's prediction below it."
    title, needs = "Inputs before and after an attack", FIGURES["accuracy-epsilon"].needs
    return _gallery(contents, make, title, lead, _attack_part, needs)


def _gallery(
    contents: Contents,
    make: Elements,
    title: str,
    lead: str,
    part_of: Callable[[Method], _Part | None],
    needs: str = "",
) -> Html:
    """What ``part_of`` gives for each method, unfolded for the first.

    Without any pictures, a sentence names the command that ``needs`` has, if it has one.
    """
    parts: list[Html] = []
    for method in contents.methods:
        if (part := part_of(method)) is not None:
            pictures, source = part
            content = (element("summary", method.name), *pictures, make.sources([source]))
            parts.append(element("details", *content, open=not parts))
    if parts:
        return element("div", element("h3", title), element("p", lead), *parts, class_="gallery")
    return join_html(element("h3", title), missing("No pictures", needs)) if needs else Html("")


def _divergent_part(method: Method) -> _Part | None:
    detection = method.detection
    if detection is None or not detection.images:
        return None
    sets = dict.fromkeys(row.text("set") for row, _ in detection.images)
    halves = [[_half(detection.images, name, kind) for kind in ("most", "least")] for name in sets]
    pictures = [element("div", *both, class_="halves") for both in halves]
    return pictures, detection.record.reference("examples")


def _half(images: Sequence[tuple[Record, Images]], name: str, kind: str) -> Html:
    rows = [item for item in images if (item[0].text("set"), item[0].text("kind")) == (name, kind)]
    heading = f"{kind} divergent of {name}, by {rows[0][0].text('score')}" if rows else ""
    items = element("ul", *(_divergent_item(*item) for item in rows), class_="pictures")
    return element("div", element("h4", heading), items)


def _divergent_item(row: Record, image: Images) -> Html:
    predicted, truth, value = str(row.at("predicted")), row.at("truth"), float(row.at("value"))
    others = ", ".join(map(str, row.at("others")[:3])) or "all agree"
    known = "" if truth is None else f"truth {truth}, "
    alt = (
        f"{row.text('kind')} divergent input of {row.text('set')}: predicted {predicted}; other "
        f"members: {others}; {known}score {value:.3g}"
    )
    return element(
        "li",
        element("img", src=data_uri(image), alt=alt),
        element("b", predicted, class_="wrong" if truth not in (None, predicted) else None),
        f" · {others}",
        element("br"),
        element("small", f"{known}{short(value)}"),
    )


def _strangers_part(method: Method) -> _Part | None:
    detection = method.detection
    if detection is None or not detection.strangers:
        return None
    halves = []
    for kind, heading in (("known", "training images"), ("stranger", "strangers")):
        items = [
            element("li", element("img", src=data_uri(image), alt=f"{kind} {place}"))
            for place, (row, image) in enumerate(detection.strangers)
            if row.text("kind") == kind
        ]
        pictures = element("ul", *items, class_="pictures")
        halves.append(element("div", element("h4", heading), pictures))
    both = element("div", *halves, class_="halves")
    return [both], detection.record.reference("strangers")


def _attack_part(method: Method) -> _Part | None:
    images = method.attack_images
    if images is None:
        return None
    names = ("original", *images.attacks)
    pixels = (images.original, *images.adversarial)
    predictions = (images.labels, *images.predictions)
    rows = [
        _attack_row(*row, images.labels) for row in zip(names, pixels, predictions, strict=True)
    ]
    table = element("table", element("tbody", *rows), class_="beside")
    return [scroll_box(table, f"Adversarial examples of {method.name}")], images.source


def _attack_row(name: str, images: Images, predicted: Sequence[str], labels: Sequence[str]) -> Html:
    cells = [
        element(
            "td",
            element("img", src=data_uri(image), alt=f"{name}: {label}, predicted as {word}"),
            element("span", word, class_="wrong" if word != label else None),
        )
        for image, word, label in zip(images, predicted, labels, strict=True)
    ]
    return element("tr", element("th", name, scope="row"), *cells)


# ---- images as PNG ------------------------------------------------------------------------------

_LARGEST = 96  # pixels of a side; larger images are averaged down


def png(image: Images) -> bytes:
    """``image`` ``[channels, height, width]``, one channel (grey) or three (colour), as PNG.

    >>> png(np.zeros((1, 2, 2), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    channels, height, width = image.shape
    if channels not in (1, 3) or image.dtype != np.uint8:
        raise ValueError(
            f"an image must be uint8 [1 or 3, height, width], got {image.dtype} {image.shape}"
        )
    rows = np.moveaxis(image, 0, -1).reshape(height, width * channels)
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def data_uri(image: Images) -> str:
    """``image``, made small enough, as a ``data:`` address; other channels than 1 or 3 as grey."""
    if image.shape[0] not in (1, 3):
        image = image.mean(0, keepdims=True).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(shrink(image))).decode("ascii")


def shrink(image: Images, largest: int = _LARGEST) -> Images:
    """``image`` averaged over squares until no side is longer than ``largest``.

    >>> shrink(np.full((1, 200, 100), 7, np.uint8)).shape
    (1, 66, 33)
    """
    side = -(-max(image.shape[1:]) // largest)
    if side <= 1:
        return image
    channels, height, width = image.shape
    cut = image[:, : height // side * side, : width // side * side]
    blocks = cut.reshape(channels, height // side, side, width // side, side)
    averaged: Images = blocks.mean((2, 4)).round().astype(np.uint8)
    return averaged


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)
