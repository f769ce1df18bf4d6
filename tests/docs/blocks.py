"""The code blocks of the documentation, with what a comment above them says of how they are tested.

::

    <!-- given: provider -->        what the page's Python finds; see `given.py`; once, for the whole page
    <!-- file: app.py -->           the block is this file: written, and imported if it is Python
    <!-- run -->                    the commands are run by bash, in the page's folder
    <!-- not run: the reason -->    Python that is only compiled
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from programs import ROOT

DOCS = ROOT / "docs"
# Pages whose blocks have a test of their own, which runs them in another way.
ELSEWHERE = {
    "docs/how-to/intervene.md": "tests/interventions/test_cookbook.py",
    "docs/how-to/intervene-cookbook.md": "tests/interventions/test_cookbook.py",
    "docs/reference/interventions-beside-nnsight.md": "tests/interventions/test_cookbook.py",
    "docs/how-to/from-alert-to-cause.md": "tests/integration/test_alert_to_cause.py",
    "docs/tutorial/first-alert.md": "tests/docs/test_tutorial.py",
}
_FENCE = re.compile(
    r"(?P<marks>(?:^ *<!-- [^\n]*-->\n\n?)*)"
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (?P<kind>given|file|run|not run)(?:: (?P<value>[^\n]+?))? -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: path of its page, from the root.
        line: of the page, on which its code begins.
        marks: what the comments above it say.
    """

    page: str
    line: int
    language: str
    code: str
    marks: dict[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All pages with blocks that readers copy."""
    found = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return sorted(path for path in found if "```" in path.read_text(encoding="utf-8"))


def blocks_of(path: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = len(found["indent"])
        code = "".join(line[indent:] or "\n" for line in found["code"].splitlines(keepends=True))
        marks = {mark["kind"]: mark["value"] or "" for mark in _MARK.finditer(found["marks"])}
        line = text[: found.start("code")].count("\n") + 1
        yield Block(str(path.relative_to(ROOT)), line, found["language"].strip(), code, marks)


def all_blocks() -> list[Block]:
    """Every block of every page."""
    return [block for path in pages() for block in blocks_of(path)]
