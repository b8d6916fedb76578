"""Galleries: inputs on which members agree least and most, and inputs before and after an attack.

Images are PNG inside the page, by a writer of a few lines.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from dissensus.report.contents import AttackImages, Contents, Images, Record
from dissensus.report.figure import short
from dissensus.report.figures import FIGURES
from dissensus.report.html import Elements, Html, element, join_html, missing, scroll_box


def divergent_gallery(contents: Contents, make: Elements) -> Html:
    """The most and least divergent inputs of each method, unfolded for the first (ldr, Fig. 3)."""
    parts: list[Html] = []
    for method in contents.methods:
        images = method.detection.images if method.detection else ()
        if not method.detection or not images:
            continue
        halves = []
        for name in dict.fromkeys(row.text("set") for row, _ in images):
            both = [_half(images, name, kind) for kind in ("most", "least")]
            halves.append(element("div", *both, class_="halves"))
        sources = make.sources([method.detection.record.reference("examples")])
        summary = element("summary", method.name)
        parts.append(element("details", summary, *halves, sources, open=not parts))
    lead = (
        "In bold the ensemble's prediction, then what dissenting members predict instead, the "
        "truth, and the score."
    )
    title = "Inputs that divide members most and least"
    return _gallery(title, lead, parts, FIGURES["roc"].needs)


def strangers_gallery(contents: Contents, make: Elements) -> Html:
    """Training images, and the strangers made of them; nothing where there are none."""
    parts: list[Html] = []
    for method in contents.methods:
        images = method.detection.strangers if method.detection else ()
        if not method.detection or not images:
            continue
        halves = []
        for kind, words in (("known", "training images"), ("stranger", "strangers")):
            items = [
                element("li", element("img", src=data_uri(image), alt=f"{kind} {place}"))
                for place, (row, image) in enumerate(images)
                if row.text("kind") == kind
            ]
            pictures = element("ul", *items, class_="pictures")
            halves.append(element("div", element("h4", words), pictures))
        sources = make.sources([method.detection.record.reference("strangers")])
        both = element("div", *halves, class_="halves")
        summary = element("summary", method.name)
        parts.append(element("details", summary, both, sources, open=not parts))
    lead = (
        "Strangers are made from each training batch: they keep its strokes and textures, and are "
        "none of its classes. Members learn to disagree on them, and then disagree on unknown "
        "inputs too."
    )
    return _gallery("Strangers", lead, parts, "") if parts else join_html()


def _gallery(title: str, lead: str, parts: Sequence[Html], needs: str) -> Html:
    heading = element("h3", title)
    if not parts:
        return join_html(heading, missing("No pictures", needs))
    return element("div", heading, element("p", lead), *parts, class_="gallery")


def _half(images: Sequence[tuple[Record, Images]], name: str, kind: str) -> Html:
    chosen = [
        (row, image) for row, image in images if (row.text("set"), row.text("kind")) == (name, kind)
    ]
    words = f"{kind} divergent of {name}, by {chosen[0][0].text('score')}" if chosen else ""
    items = element("ul", *(_divergent_item(*item) for item in chosen), class_="pictures")
    return element("div", element("h4", words), items)


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


def attack_gallery(contents: Contents, make: Elements) -> Html:
    """Originals above what attacks made of them, in one table for each method."""
    parts: list[Html] = []
    for method in contents.methods:
        images = method.attack_images
        if images is not None:
            table = scroll_box(_attack_table(images), f"Adversarial examples of {method.name}")
            content = (element("summary", method.name), table, make.sources([images.source]))
            parts.append(element("details", *content, open=not parts))
    lead = "Images that most attacks broke, each with the ensemble's prediction below it."
    needs = FIGURES["accuracy-epsilon"].needs
    return _gallery("Inputs before and after an attack", lead, parts, needs)


def _attack_table(images: AttackImages) -> Html:
    names = ("original", *images.attacks)
    pixels = (images.original, *images.adversarial)
    predictions = (images.labels, *images.predictions)
    rows = [
        _attack_row(*row, images.labels) for row in zip(names, pixels, predictions, strict=True)
    ]
    return element("table", element("tbody", *rows), class_="beside")


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
