"""Progress bars for long computations, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: the display in use; rich allows one at a time
_shown: list[Progress] = []


@contextmanager
def bar(
    text: str, total: int | None = None, *, console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a bar while the body runs; the body calls the function with the steps done so far.

    The bar is on standard error unless a console is given, and below other bars that are shown.
    Nothing is shown unless the console is a terminal.
    """
    with ExitStack() as stack:
        if not _shown:
            from rich import progress as rich
            from rich.console import Console

            console = console or Console(stderr=True)
            words, steps = rich.TextColumn("{task.description}"), rich.MofNCompleteColumn()
            columns = (words, rich.BarColumn(), steps, rich.TimeElapsedColumn())
            hidden = not console.is_terminal
            display = rich.Progress(*columns, console=console, transient=True, disable=hidden)
            _shown.append(stack.enter_context(display))
            stack.callback(_shown.clear)
        shown = _shown[0]
        task = shown.add_task(text, total=total)
        stack.callback(shown.remove_task, task)
        yield lambda done: shown.update(task, completed=done)
