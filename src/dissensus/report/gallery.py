"""Pictures: inputs on which members agree least and most, and inputs before and after an attack."""

from __future__ import annotations

from collections.abc import Sequence

from dissensus.report.elements import Elements, missing, scrolling
from dissensus.report.figure import short
from dissensus.report.figures import FIGURES
from dissensus.report.found import AttackPictures, Contents, Images, Picture, Source
from dissensus.report.html import Html, element, joined
from dissensus.report.pictures import data_uri

__all__ = ["attacked_pictures", "divergent_pictures"]

_KINDS = ("most", "least")


def divergent_pictures(contents: Contents, make: Elements) -> Html:
    """The most and least divergent inputs of each method, unfolded for the first (ldr, Fig. 3)."""
    parts: list[Html] = []
    for method in contents.methods:
        pictures = method.detected.pictures if method.detected else ()
        if not pictures:
            continue
        inside = []
        for name in dict.fromkeys(picture.set for picture in pictures):
            halves = [_half([one for one in pictures if one.set == name], k) for k in _KINDS]
            inside.append(element("div", *halves, class_="halves"))
        inside.append(make.sources([Source(pictures[0].source.file, "examples")]))
        summary = element("summary", method.name)
        parts.append(element("details", summary, *inside, open=not parts))
    heading = element("h3", "The inputs that divide members most and least")
    if not parts:
        return joined(heading, missing("No pictures", FIGURES["roc"].needs))
    lead = (
        "In bold what the ensemble predicts, then what dissenting members predict instead, the "
        "truth, and the score."
    )
    return element("div", heading, element("p", lead), *parts, class_="gallery")


def _half(pictures: Sequence[Picture], kind: str) -> Html:
    own = [one for one in pictures if one.kind == kind]
    words = f"{kind} divergent of {own[0].set}, by {own[0].score}" if own else ""
    items = [_divergent(one) for one in own]
    return element("div", element("h4", words), element("ul", *items, class_="pictures"))


def _divergent(picture: Picture) -> Html:
    others = ", ".join(picture.others[:3]) or "all agree"
    truth = "" if picture.truth is None else f"truth {picture.truth}, "
    wrong = picture.truth is not None and picture.truth != picture.predicted
    said = f"{picture.kind} divergent input of {picture.set}: predicted {picture.predicted}"
    return element(
        "li",
        _image(picture.image, f"{said}; other members: {others}; {truth}score {picture.value:.3g}"),
        element("b", picture.predicted, class_="wrong" if wrong else None),
        f" · {others}",
        element("br"),
        element("small", f"{truth}{short(picture.value)}"),
    )


def attacked_pictures(contents: Contents, make: Elements) -> Html:
    """Originals above what attacks made of them, a table a method."""
    parts: list[Html] = []
    for method in contents.methods:
        found = method.attacked.pictures if method.attacked else None
        if found is None:
            continue
        table = scrolling(_beside(found), f"Adversarial examples of {method.name}")
        summary = element("summary", method.name)
        parts.append(
            element("details", summary, table, make.sources([found.source]), open=not parts)
        )
    heading = element("h3", "Inputs before and after an attack")
    if not parts:
        return joined(heading, missing("No pictures", FIGURES["accuracy-epsilon"].needs))
    lead = "Images that most attacks broke; below each one what the ensemble takes it for."
    return element("div", heading, element("p", lead), *parts, class_="gallery")


def _beside(found: AttackPictures) -> Html:
    rows = [_line("original", found.original, found.labels, found.labels)]
    for number, attack in enumerate(found.attacks):
        rows.append(
            _line(attack, found.adversarial[number], found.predictions[number], found.labels)
        )
    return element("table", element("tbody", *rows), class_="beside")


def _line(name: str, images: Images, predicted: Sequence[str], labels: Sequence[str]) -> Html:
    cells = [
        element(
            "td",
            _image(image, f"{name}: a {label} taken for {word}"),
            element("span", word, class_="wrong" if word != label else None),
        )
        for image, word, label in zip(images, predicted, labels, strict=True)
    ]
    return element("tr", element("th", name, scope="row"), *cells)


def _image(image: Images, alt: str) -> Html:
    return element("img", src=data_uri(image), alt=alt)
