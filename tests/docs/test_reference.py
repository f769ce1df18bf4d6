"""Reference pages are what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from neuronscope.settings import Settings
from neuronscope.signals import names
from programs import ROOT, environment

DOCS = ROOT / "docs"
# Read by OpenTelemetry's own parts, or before there are settings.
OTHERS = {
    "NEURONSCOPE_CONFIG",
    "NEURONSCOPE_NATIVE",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER",
}
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


@pytest.mark.integration
def test_generated_pages_are_up_to_date() -> None:
    """Settings, metrics, attributes, commands, adapters and errors; `make docs` renews them."""
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"],
        env=environment(), capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_error_has_a_page_that_says_what_to_do() -> None:
    """Written by hand, below what is made."""
    for page in sorted((DOCS / "reference" / "errors").glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text(encoding="utf-8")
        assert "## When\n\n#" not in text, page.name
        assert len(text.partition("## What to do\n")[2].strip()) > 40, page.name


def test_every_signal_says_what_it_is() -> None:
    """Attributes, events and metrics have a meaning, not a place for one."""
    told = {
        **{key: one.brief for key, one in names.ATTRIBUTES.items()},
        **{key: one.brief for key, one in names.EVENTS.items()},
        **{key: one.brief for key, one in names.METRICS.items()},
    }
    assert not [key for key, brief in told.items() if len(brief) <= 3]


def test_variables_in_the_documentation_exist() -> None:
    """Every environment variable that a page names is one of a setting."""
    known = {name for item in fields(Settings) for name in item.metadata["env"]} | OTHERS
    named = re.compile(r"\b(?:NEURONSCOPE|OTEL)_[A-Z][A-Z_]*[A-Z]\b")
    unknown = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in named.findall(page.read_text(encoding="utf-8"))
        if name not in known
    }
    assert not unknown
