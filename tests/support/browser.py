"""A real browser for tests of the page: Chromium, driven by Playwright, with the accessibility rules of axe-core."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_S = 300.0
"""Time limit of each step, in seconds."""
_ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci --prefix web")


@contextmanager
def browser() -> Iterator[object]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=_ARGS, timeout=1e3 * PATIENCE_S)
        try:
            yield chromium
        finally:
            chromium.close()


def opened(chromium, url, *, width=1400, height=900, dark=False):
    """Open a page; errors of its script are in `page.problems`."""
    page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page.set_default_timeout(1e3 * PATIENCE_S)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda line: page.problems.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(url)
    return page


def violations(page):
    """Return the serious and critical violations of the rules of axe-core, with the elements."""
    page.evaluate(AXE.read_text())  # the content security policy forbids a script element
    found = page.evaluate("axe.run()")["violations"]
    return [
        (rule["id"], [node["html"] for node in rule["nodes"]])
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]
