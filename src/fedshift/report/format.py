"""Write numbers as text; unknown ones are a dash."""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard

#: text for None and NaN
UNKNOWN = "–"


def known(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # integers can be larger


def finite(value: Any, otherwise: float = math.nan) -> float:
    """Return a value as a float, or `otherwise` if it is not a finite number."""
    return float(value) if known(value) else otherwise


def number(value: Any, digits: int = 3) -> str:
    """Write a number with `digits` significant digits.

    Examples
    --------
    >>> number(0.12345), number(-12345.6), number(float("nan")), number(7)
    ('0.123', '−12,346', '–', '7')
    """
    if not known(value):
        return _odd(value)
    if isinstance(value, int) or abs(value) >= 10**digits:
        return _signed(f"{value:,.0f}") if abs(value) < 1e15 else _power(f"{value:.{digits}g}")
    return _power(f"{value:.{digits}g}")


def fixed(value: Any, places: int = 2) -> str:
    """Write a number with `places` decimal places, so that a column lines up."""
    return _signed(f"{value:.{places}f}") if known(value) else _odd(value)


def share(value: Any, places: int = 0) -> str:
    """Write a share as per cent; small shares are not rounded to 0% nor large ones to 100%.

    Examples
    --------
    >>> share(0.456), share(0.004), share(0.9999), share(1.0), share(None)
    ('46%', '<1%', '>99%', '100%', '–')
    """
    if not known(value):
        return _odd(value)
    least = 0.5 * 10.0 ** -(places + 2)
    if 0 < value < least:
        return f"<{10.0**-places:.{places}f}%"
    if 1 - least < value < 1:
        return f">{100 - 10.0**-places:.{places}f}%"
    return _signed(f"{value:.{places}%}")


def signed(value: Any, places: int = 2) -> str:
    """Write a change with its sign.

    Examples
    --------
    >>> signed(0.123), signed(-0.5), signed(-0.001)
    ('+0.12', '−0.50', '0.00')
    """
    text = fixed(value, places)
    return (
        f"+{text}" if known(value) and value > 0 and any(c in "123456789" for c in text) else text
    )


def count(value: Any, thing: str = "", many: str = "") -> str:
    """Write a number of things, with the singular or plural.

    Examples
    --------
    >>> count(1, "row"), count(1200, "row"), count(None, "row"), count(2, "class", "classes")
    ('1 row', '1,200 rows', '– rows', '2 classes')
    """
    text = f"{round(value):,}" if known(value) else _odd(value)
    return text if not thing else f"{text} {thing if text == '1' else many or f'{thing}s'}"


def span(low: Any, high: Any, write: Any = fixed) -> str:
    """Write an interval; the text is empty if neither end is known."""
    if not (known(low) or known(high)):
        return ""
    return f"[{write(low)}, {write(high)}]"


def size(value: Any) -> str:
    """Write a number of bytes, with units in powers of 1000.

    Examples
    --------
    >>> size(999), size(3_072_000), size(3.5e12)
    ('999 B', '3.07 MB', '3.5 TB')
    """
    if not known(value):
        return _odd(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5:  # a value that rounds to 1000 takes the next unit
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} PB" if value < 999.5 else f"{value:,.0f} PB"


def chance(finding: Any) -> str:
    """Write the adjusted p-value of a finding; "≤" if no draw was as extreme as the data."""
    p, adjusted, draws = finding.get("p"), finding.get("adjusted"), finding.get("draws")
    if not known(adjusted):
        return UNKNOWN
    least = known(p) and known(draws) and draws and p * (1 + draws) < 1.5
    return f"{'≤ ' if least else ''}{adjusted:.2g}"


def listed(words: list[str], most: int = 4) -> str:
    """Join words with commas and "and"; a long list is cut.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed(["a"] * 9)
    ('a, b and c', 'a, a, a, a and 5 more')
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _odd(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return UNKNOWN


def _signed(text: str) -> str:
    """Use a typographic minus sign, and none before zero."""
    if text.startswith("-") and not any(c in "123456789" for c in text):
        text = text[1:]
    return text.replace("-", "−")


def _power(text: str) -> str:
    figure, _, power = text.partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else ""
    return _signed(figure) + (f" × 10{raised}" if raised else "")
