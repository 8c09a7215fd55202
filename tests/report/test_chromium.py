"""The page in a real browser: no request leaves, nothing sticks out, keys work, paper shows all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedshift.report.build import build_report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt install chromium"),
]

#: takes two ends of pipes to the places where Chromium looks for them
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
#: elements that stick out of the page to the right; boxes that scroll by themselves may
_OUTSIDE = """
(() => {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter(e => !e.closest(".wide, nav, .skip"))
    .filter(e => e.getBoundingClientRect().right > width + 1)
    .map(e => `${e.tagName} ${e.getAttribute("class")}: ${e.textContent.slice(0, 40)}`);
})()
"""
LONG = "Krankenhausverwaltungsgesellschaft" * 4


class Browser:
    """Headless Chromium, spoken to by the DevTools protocol over two pipes."""

    def __init__(self, folder: Path) -> None:
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}"]
        flags += ["--no-first-run"] + ["--no-sandbox"] * (os.geteuid() == 0)
        assert CHROMIUM is not None
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, ends), CHROMIUM, *flags, "about:blank"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read, write, *ends):
            os.close(end)
        self._rest, self._count, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._count:
                assert "error" not in got, got
                return dict(got["result"])

    def _next(self) -> dict[str, Any]:
        """The next message; events are kept."""
        until = time.monotonic() + 60
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "Chromium does not answer"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        got = dict(json.loads(one))
        if "method" in got:
            self.events.append(got)
        return got

    def open(self, file: Path, *, width: int = 1280, height: int = 900, media: str = "") -> None:
        """Load a page at a size, and wait until it is there."""
        self.ask("Emulation.setEmulatedMedia", media=media)
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        self.ask("Page.navigate", url=file.as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._next()

    def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression; the page itself may run none."""
        got = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def press(self, key: str) -> None:
        """A key down and up."""
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def params(self, method: str) -> list[dict[str, Any]]:
        """Of all events of a kind since the page was asked for."""
        return [e["params"] for e in self.events if e["method"] == method]

    def sent(self) -> list[str]:
        """Addresses that were asked for and not refused by the page's own policy."""
        refused = {
            e["requestId"]
            for e in self.params("Network.loadingFailed")
            if e.get("blockedReason") == "csp"
        }
        asked = self.params("Network.requestWillBeSent")
        return [e["request"]["url"] for e in asked if e["requestId"] not in refused]

    def close(self) -> None:
        self._session = None
        try:
            self.ask("Browser.close")
            self._process.wait(timeout=30)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def page(record: dict[str, Any], tmp_path: Path) -> Path:
    """A report of sites with names that try to break out, or to push others aside."""
    text = json.dumps(record)
    for old, new in (("north", LONG), ("west", "<img src=http://evil.example/x onerror=alert(1)>")):
        text = re.sub(rf"\b{old}\b", json.dumps(new)[1:-1], text)
    file = tmp_path / "report.html"
    file.write_text(build_report(json.loads(text)), encoding="utf-8")
    return file


def with_image(page: Path) -> Path:
    """The page with a picture from elsewhere, as a mistake would put it there."""
    picture = '<img src="http://evil.example/x.png"></main>'
    text = page.read_text(encoding="utf-8").replace("</main>", picture)
    page.with_name("image.html").write_text(text, encoding="utf-8")
    return page.with_name("image.html")


def test_no_request_leaves(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.sent() == [page.as_uri()]
    assert browser.value("performance.getEntriesByType('resource').length") == 0
    assert browser.value("document.querySelectorAll('script, img, link, iframe').length") == 0
    assert browser.params("Log.entryAdded") == []
    assert browser.params("Runtime.exceptionThrown") == []
    assert browser.value("document.title").startswith("Three wards")


def test_even_a_mistake_could_not_ask(browser: Browser, page: Path) -> None:
    """The page's policy refuses what its markup asks for; without it the request is seen."""
    wrong = with_image(page)
    browser.open(wrong)
    assert browser.sent() == [wrong.as_uri()]
    assert any(
        "Content Security Policy" in e["entry"]["text"] for e in browser.params("Log.entryAdded")
    )
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", wrong.read_text())
    wrong.write_text(text, encoding="utf-8")
    browser.open(wrong)
    assert browser.sent() == [wrong.as_uri(), "http://evil.example/x.png"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_sticks_out(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=844)
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true })")
    root = "document.documentElement"
    assert browser.value(f"{root}.clientWidth") == width
    assert browser.value(f"{root}.scrollWidth") == width
    assert browser.value(_OUTSIDE) == []


def test_a_wide_element_would_be_seen(browser: Browser, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<h1>", '<p><b class="wider">x</b></p><h1>'), encoding="utf-8")
    browser.open(page, width=390, height=844)
    browser.value("document.querySelector('.wider').style.cssText = 'display: block; width: 500px'")
    assert browser.value(_OUTSIDE) == ["B wider: x"]


def test_the_summary_fits_one_screen(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.value("document.querySelector('.tiles').getBoundingClientRect().bottom") < 900


def test_keys_lead_into_the_report_and_open_parts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.value("document.activeElement.id") == "main"
    browser.press("Tab")
    assert browser.value("document.activeElement.className") == "tile"
    style = "getComputedStyle(document.activeElement)"
    assert browser.value(f"{style}.outlineStyle") == "solid"
    assert float(browser.value(f"{style}.outlineWidth").removesuffix("px")) >= 2


def test_paper_shows_what_is_folded_and_cuts_no_card(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = "document.querySelector('details:not([open]) table').checkVisibility()"
    assert browser.value(seen) is False
    browser.open(page, width=700, media="print")
    assert browser.value(seen) is True
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    card = "getComputedStyle(document.querySelector('.card')).breakInside"
    assert browser.value(card) == "avoid"
    assert browser.value(_OUTSIDE) == []
