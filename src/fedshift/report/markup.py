"""Write HTML and SVG from Python; all text is escaped.

`tag` escapes everything that is not `Html`, and only `text`, `tag` and `join` make `Html`. So no
name in a record can become a tag, an attribute or a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

#: HTML elements without an end tag
VOID = frozenset({"meta", "br", "hr", "col"})
#: SVG elements that close themselves
LEAVES = frozenset({"circle", "line", "rect", "path"})
#: characters that are invalid in HTML: control characters and surrogates
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: longest name in full, longest title, and longest word without a line break
LONGEST, TITLE, UNBROKEN = 60, 400, 22


class Html(str):
    """Text that is markup and needs no escaping."""

    __slots__ = ()


#: content of an element
Child = str | None | Iterable["Child"]


def text(value: str) -> Html:
    """Escape text, so that it is safe between tags and within quotes.

    Examples
    --------
    >>> text('a < b & "c"')
    'a &lt; b &amp; &quot;c&quot;'
    """
    return Html(escape(_UNFIT.sub("\ufffd", value), quote=True))


def join(*children: Child, between: str = "") -> Html:
    """Concatenate children; strings are escaped and None is skipped."""
    return Html(between.join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Any) -> Html:
    """Make an element.

    Parameters
    ----------
    name : str
        For example "p".
    *children : str, Html, None or iterables of them
    **attributes
        ``class_`` sets class, ``aria_label`` sets aria-label. None omits an attribute; True writes
        it without a value.

    Examples
    --------
    >>> tag("p", "1 < 2 ", tag("b", "!"), class_="note")
    '<p class="note">1 &lt; 2 <b>!</b></p>'
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{words}>")
    if name in LEAVES and not children:
        return Html(f"<{name}{words}/>")
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def named(name: str, *, longest: int = LONGEST) -> Html:
    """Mark up a name from the data, so that its text direction does not affect its neighbours."""
    short = shortened(name, longest)
    unbroken = max(map(len, short.split()), default=0) > UNBROKEN
    return tag(
        "bdi",
        short,
        class_="long" if unbroken else None,
        title=None if short == name else shortened(name, TITLE),
    )


def shortened(name: str, longest: int = LONGEST) -> str:
    """Cut a long name; a blank one becomes "(no name)"."""
    if not name.strip():
        return "(no name)"
    return name if len(name) <= longest else name[: longest - 1] + "…"


def isolated(name: str, *, longest: int = LONGEST) -> str:
    """Do the same as `named`, but with Unicode marks instead of an HTML element.

    It is for places that allow no element, such as the title of a drawing.
    """
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
