"""Pages of the docs that hold examples: their code runs and prints what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {
    path.relative_to(DOCS).as_posix(): text
    for path in sorted(DOCS.rglob("*.md"))
    if ">>> " in (text := path.read_text(encoding="utf-8"))
}


def test_the_gallery_is_there() -> None:
    assert {
        f"gallery/{n}.md" for n in ("label-shift", "covariate-shift", "do-not-use-when")
    } <= set(PAGES)


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_runs(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGES[name], flags=re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, name, 0)
    assert example.examples
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_links_between_pages_lead_somewhere() -> None:
    for path in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+\.md)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).is_file(), f"{path.name}: {link}"
