"""Documents as data, for the tests of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def code_blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(*found.groups()) for found in _BLOCK.finditer(document.read_text(encoding="utf-8"))]


def prose(document: Path) -> str:
    """A document without its fenced blocks."""
    return _BLOCK.sub("", document.read_text(encoding="utf-8"))


def headings(document: Path) -> set[str]:
    """The anchors that its headings have."""
    titles = re.findall(r"^#+ +(.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def links(document: Path) -> list[str]:
    """Where its links and images point."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(document))
