"""Compare our figures with published ones. A figure is a score: accuracy, or MSE ("mse")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from itertools import pairwise

from fedshift.core.score_text import plain_text, share_text

#: a figure this many published standard deviations below is still reached
SDS = 2


def verdict(
    ours: float,
    published: float,
    sd: float = 0.0,
    *,
    figure: str = "accuracy",
    half: float | None = None,
) -> str:
    """Compare our figure with a published one: "reached", or by how much it is below.

    Reached means ours ≥ published − 2 sd, up to rounding. A printed .82 stands for all numbers
    that round to it. Therefore ours only has to reach published − 2 sd − half, where `half` is half
    a unit of the last printed digit. By default `half` follows from the digits of `published`. For
    an error ("mse"), lower is better: it is reached if ours ≤ published + 2 sd + half.

    Examples
    --------
    >>> verdict(0.8025, 0.8245, 0.011), verdict(0.748, 0.76), verdict(0.816, 0.82)
    ('reached', 'below by .012', 'reached')
    """
    missing = published - ours if figure == "accuracy" else ours - published
    half = half_digit([published]) if half is None else half
    if missing <= SDS * sd + half + 1e-9:  # floating-point error must not decide
        return "reached"
    word = "below" if figure == "accuracy" else "above"
    amount = share_text(missing) if missing >= 5e-4 else "less than .001"
    return f"{word} by {amount}"


def half_digit(numbers: Iterable[float]) -> float:
    """Half a unit of the last digit of numbers that are printed with the same number of digits.

    Floats drop trailing zeros, so at least two digits are assumed: .80 counts as two.
    """
    exponents = (Decimal(repr(float(n))).as_tuple().exponent for n in numbers)
    return 0.5 * 10.0 ** min(-2, *map(int, exponents))


def ordering(
    published: Mapping[str, float], ours: Mapping[str, float], *, figure: str = "accuracy"
) -> str | None:
    """Check in one sentence whether our figures rank methods as published ones do.

    Methods whose published figures are equal may differ here. None for fewer than two methods.

    Examples
    --------
    >>> ordering({"FTW": 0.82, "ERM": 0.76, "FITW": 0.76}, {"FTW": 0.83, "ERM": 0.7, "FITW": 0.8})
    'published ordering FTW > ERM = FITW: holds'
    """
    sign = 1 if figure == "accuracy" else -1
    ranked = sorted(published, key=lambda m: -sign * published[m])
    if len(ranked) < 2:
        return None
    text = ranked[0]
    for a, b in pairwise(ranked):
        text += f" {'=' if published[a] == published[b] else '>' if sign > 0 else '<'} {b}"
    run = [m for m in ranked if m in ours]
    pairs = [
        (a, b) for i, a in enumerate(run) for b in run[i + 1 :] if published[a] != published[b]
    ]
    wrong = [(a, b) for a, b in pairs if sign * ours[a] <= sign * ours[b]]
    missing = [m for m in ranked if m not in ours]
    end = f" (not run: {', '.join(missing)})" if missing else ""
    if not pairs:
        return f"published ordering {text}: inconclusive{end}"
    if not wrong:
        return f"published ordering {text}: holds{end}"
    show, side = formatter(figure), "above" if sign > 0 else "below"
    gaps = "; ".join(f"{a} {show(ours[a])} is not {side} {b} {show(ours[b])}" for a, b in wrong)
    return f"published ordering {text}: does not hold, {gaps}{end}"


def formatter(figure: str) -> Callable[[float], str]:
    """A function that formats values of a figure."""
    return partial(share_text, digits=4) if figure == "accuracy" else plain_text


def printed(value: float | None) -> str:
    """A published number as text, with the digits it was published with; empty for None."""
    return "" if value is None else f"{value:.6g}".removeprefix("0")


def spread(value: tuple[float, float | None], show: Callable[[float], str]) -> str:
    """A mean ± half its interval."""
    mean, half = value
    return show(mean) if half is None else f"{show(mean)} ± {show(half)}"


def summary(verdicts: Mapping[str, str]) -> str:
    """The verdicts of a method in one line."""
    if len(verdicts) < 2:
        return verdicts.get("mean", "")
    own = ("mean", "best iterate", "worst", "best")
    parts = [f"{cell} {verdicts[cell]}" for cell in own if cell in verdicts]
    clients = {c: v for c, v in verdicts.items() if c not in own}
    if clients:
        missed = [f"{c} {v}" for c, v in clients.items() if v != "reached"]
        count = f"{len(clients) - len(missed)} of {len(clients)} clients reached"
        parts.append(count + (f" ({', '.join(missed)})" if missed else ""))
    return "; ".join(parts)
