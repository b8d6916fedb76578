"""HTML that is safe by default: whatever is not :class:`Html` already is escaped."""

from __future__ import annotations

import html
import json
from typing import Any

__all__ = ["Html", "element", "joined", "script_json"]


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: Any) -> Html:
    """One element; a trailing ``_`` of an attribute falls away, other ``_`` become ``-``.

    >>> element("a", "x < y", href="r.json", title='"q"', class_="num", hidden=False)
    '<a href="r.json" title="&quot;q&quot;" class="num">x &lt; y</a>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        words.append(plain if value is True else f'{plain}="{html.escape(str(value))}"')
    opened = f"<{' '.join(words)}>"
    if name in ("img", "input", "meta", "br"):
        return Html(opened)
    return Html(f"{opened}{joined(*children)}</{name}>")


def joined(*children: str | None) -> Html:
    """Children one after the other, text among them escaped.

    >>> joined("a & b", Html("<br>"), None)
    'a &amp; b<br>'
    """
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(child)
            for child in children
            if child is not None
        )
    )


def script_json(values: Any) -> Html:
    """JSON that may stand inside a ``<script>``: nothing in it can end the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    escapes = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    for character, escape in escapes.items():
        text = text.replace(character, escape)
    return Html(text)
