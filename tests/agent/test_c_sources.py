"""The C sources say what they mean: a compiler that refuses what is doubtful has nothing to say."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from building import ROOT, build_script

STRICT = ("-Wall", "-Wextra", "-Werror", "-Werror=implicit-function-declaration", "-fsyntax-only")
LIBRARIES = (build_script().KERNEL, build_script().NATIVE)


def refused(library: Any, sources: Sequence[Path]) -> str:
    """What a strict compiler has against them, told what it is told when the package is built."""
    assert library.impossible() == ""
    command = [*library.command(), *STRICT, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_strict_compiler_takes_every_source(library: Any) -> None:
    """Also one that refuses functions which nobody has declared, as newer ones do."""
    assert refused(library, library.sources) == ""


@pytest.mark.parametrize(
    "doubtful",
    [
        "int f(int unused) { return 1; }",
        "int f(void) { return g(); }",
        "int f(int a, unsigned b) { return a < b; }",
    ],
)
def test_doubtful_code_is_refused(doubtful: str, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    (tmp_path / "doubtful.c").write_text(doubtful, encoding="utf-8")
    assert "-Werror" in refused(LIBRARIES[1], [tmp_path / "doubtful.c"])


def test_every_source_belongs_to_a_library() -> None:
    """None is left out of the test above."""
    found = set((ROOT / "agent").rglob("*.c"))
    assert found == {source for library in LIBRARIES for source in library.sources}
