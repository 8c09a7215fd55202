"""Pages of the docs: their examples run, their links and commands exist."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from fedshift.cli import parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
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


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for link, _, anchor in re.findall(r"\]\(([^)#:]*\.md|)(#([^)]+))?\)", text):
            page = path.parent / link if link else path
            assert page.is_file(), f"{path.name}: {link}"
            assert not anchor or anchor in anchors(page), f"{path.name}: {link}#{anchor}"


def test_commands_of_the_readme_are_understood() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fedshift ")]
    assert len(commands) > 10
    for command in commands:
        parser().parse_args(command[1:])


def test_modules_that_pages_name_are_there() -> None:
    pages = {*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - {ROOT / "CHANGELOG.md"}  # it has old names
    for path in sorted(pages):
        for name in re.findall(r"`((?!flwr/)\w+/[\w/]+\.py)`", path.read_text(encoding="utf-8")):
            homes = (ROOT, ROOT / "src" / "fedshift")
            assert any((home / name).is_file() for home in homes), f"{path.name}: {name}"
