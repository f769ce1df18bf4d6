"""The documentation builds, and no link of it leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from programs import ROOT, environment

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(?:#[^)\s]*)?\)")


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Dead links, lost anchors and pages that nobody finds are errors; nothing is loaded from elsewhere."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+', page)


def test_links_of_pages_at_the_root() -> None:
    """README and CONTRIBUTING are read in the repository: what they link to is there."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / unquote(target)).exists(), f"{name}: {target}"


@pytest.mark.parametrize("folder", ["runbooks", "decisions", "reference/errors"])
def test_indexes_link_to_every_page(folder: str) -> None:
    """Pages that are not in the navigation are found by their index."""
    pages = {path.name for path in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")
    assert pages == set(LINK.findall(index)) & pages
