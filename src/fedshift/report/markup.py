"""HTML and SVG from Python, with every text escaped unless it is markup already.

Escaping is the default, not a duty: `tag` escapes whatever is not `Html`, and only `tag` and
`join` make `Html`. So no name in a record can become a tag, an attribute or a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

#: elements without an end
VOID = frozenset({"meta", "br", "hr", "col"})
#: drawn elements, which close themselves
LEAVES = frozenset({"circle", "line", "rect", "path"})
#: what no page may hold: control characters, and halves of characters
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: longest name shown whole, longest in a title, and longest word that is not broken
LONGEST, TITLE, UNBROKEN = 60, 400, 22


class Html(str):
    """Text that is markup."""

    __slots__ = ()


#: what may stand inside an element
Child = str | None | Iterable["Child"]


def text(value: str) -> Html:
    """A text as it can stand in a page, between tags and within quotes.

    Examples
    --------
    >>> text('a < b & "c"')
    'a &lt; b &amp; &quot;c&quot;'
    """
    return Html(escape(_UNFIT.sub("\ufffd", value), quote=True))


def join(*children: Child, between: str = "") -> Html:
    """Children one after the other; strings are escaped, None is nothing."""
    return Html(between.join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Any) -> Html:
    """An element.

    Parameters
    ----------
    name : str
    *children : str, Html, None or iterables of them
    **attributes
        ``class_`` is class, ``aria_label`` is aria-label; None leaves one out, True has no value.

    Examples
    --------
    >>> tag("p", "1 < 2 ", tag("b", "!"), class_="note")
    '<p class="note">1 &lt; 2 <b>!</b></p>'
    """
    said = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{said}>")
    if name in LEAVES and not children:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{join(children)}</{name}>")


def named(name: str, *, longest: int = LONGEST) -> Html:
    """A name from the data: whatever its script or direction, it leaves its neighbours alone."""
    shown = shortened(name, longest)
    unbroken = max(map(len, shown.split()), default=0) > UNBROKEN
    return tag(
        "bdi",
        shown,
        class_="long" if unbroken else None,
        title=None if shown == name else shortened(name, TITLE),
    )


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name, or its beginning; a blank one is told."""
    if not name.strip():
        return "(no name)"
    return name if len(name) <= longest else name[: longest - 1] + "…"


def isolated(name: str, *, longest: int = LONGEST) -> str:
    """A name for places where no element can stand, such as titles of drawings."""
    return f"\u2068{shortened(name, longest)}\u2069"


def _flat(child: Child) -> Iterable[str]:
    if child is None:
        return
    if isinstance(child, str):
        yield child if isinstance(child, Html) else text(child)
        return
    for part in child:
        yield from _flat(part)


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'
