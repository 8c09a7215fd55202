"""Whether published numbers are reached, and how figures are spelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import pairwise

#: how many published standard deviations below still count as reached
SDS = 2


def verdict(
    ours: float,
    published: float,
    sd: float = 0.0,
    *,
    figure: str = "accuracy",
    half: float | None = None,
) -> str:
    """Whether a published number is reached: ours ≥ published − 2 sd, to the printed digits.

    A printed .82 stands for all numbers that round to it. `half` is half a unit of its last
    digit, by default of the number as it is written.

    Examples
    --------
    >>> verdict(0.8025, 0.8245, 0.011), verdict(0.748, 0.76), verdict(0.816, 0.82)
    ('reached', 'below by .012', 'reached')
    """
    missing = published - ours if figure == "accuracy" else ours - published
    half = half_digit([published]) if half is None else half
    if missing <= SDS * sd + half + 1e-9:  # rounding must not decide
        return "reached"
    word = "below" if figure == "accuracy" else "above"
    amount = f"{missing:.3f}".removeprefix("0") if missing >= 5e-4 else "less than .001"
    return f"{word} by {amount}"


def half_digit(numbers: Iterable[float]) -> float:
    """Half a unit of the last digit of numbers that are printed with as many.

    Floats forget zeros at the end: .80 beside .76 has two digits, and so has .80 alone.
    """
    exponents = (Decimal(repr(float(n))).as_tuple().exponent for n in numbers)
    return 0.5 * 10.0 ** min(-2, *map(int, exponents))


def ordering(
    published: Mapping[str, float], ours: Mapping[str, float], *, figure: str = "accuracy"
) -> str | None:
    """Whether methods that differ in print differ the same way here; None if there are not two.

    Examples
    --------
    >>> ordering({"FTW": 0.82, "ERM": 0.76, "FITW": 0.76}, {"FTW": 0.83, "ERM": 0.7, "FITW": 0.8})
    'published ordering FTW > ERM = FITW: holds'
    """
    sign = 1 if figure == "accuracy" else -1
    ranked = sorted(published, key=lambda m: -sign * published[m])
    if len(ranked) < 2:
        return None
    said = ranked[0]
    for a, b in pairwise(ranked):
        said += f" {'=' if published[a] == published[b] else '>' if sign > 0 else '<'} {b}"
    run = [m for m in ranked if m in ours]
    pairs = [
        (a, b) for i, a in enumerate(run) for b in run[i + 1 :] if published[a] != published[b]
    ]
    wrong = [(a, b) for a, b in pairs if sign * ours[a] <= sign * ours[b]]
    missing = [m for m in ranked if m not in ours]
    end = f" (not run: {', '.join(missing)})" if missing else ""
    if not pairs:
        return f"published ordering {said}: cannot be told{end}"
    if not wrong:
        return f"published ordering {said}: holds{end}"
    show, side = shower(figure), "above" if sign > 0 else "below"
    told = "; ".join(f"{a} {show(ours[a])} is not {side} {b} {show(ours[b])}" for a, b in wrong)
    return f"published ordering {said}: does not hold, {told}{end}"


def shower(figure: str) -> Callable[[float], str]:
    """How values of a figure are spelled."""
    return _share if figure == "accuracy" else "{:.3g}".format


def _share(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def printed(value: float | None) -> str:
    """A published number with the digits it has."""
    return "" if value is None else f"{value:.6g}".removeprefix("0")


def spread(value: tuple[float, float | None], show: Callable[[float], str]) -> str:
    """A mean and half its interval."""
    mean, half = value
    return show(mean) if half is None else f"{show(mean)} ± {show(half)}"


def summary(verdicts: Mapping[str, str]) -> str:
    """The verdicts of a method's cells in one line."""
    if len(verdicts) < 2:
        return verdicts.get("mean", "")
    own = ("mean", "best iterate", "worst", "best")
    said = [f"{cell} {verdicts[cell]}" for cell in own if cell in verdicts]
    clients = {c: v for c, v in verdicts.items() if c not in own}
    if clients:
        missed = [f"{c} {v}" for c, v in clients.items() if v != "reached"]
        count = f"{len(clients) - len(missed)} of {len(clients)} clients reached"
        said.append(count + (f" ({', '.join(missed)})" if missed else ""))
    return "; ".join(said)
