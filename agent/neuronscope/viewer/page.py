"""The page of ``neuronscope view --html``: one file, no network, nothing in it but our own script.

Its sources are `html/`: a template, a stylesheet, and ES modules that import each other.  They are put
into one script here, each in a function of its own.  That script's hash is the only one that the page's
policy admits, and ``require-trusted-types-for`` makes even our own script unable to turn text into markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from neuronscope.artifact import Artifact
from neuronscope.viewer.page_data import Limits, embeddable, page_data
from neuronscope.viewer.safe import visible

# In the order in which they need each other.
_MODULES: Final = (
    "text",
    "data",
    "search",
    "scrolling",
    "traces",
    "waterfall",
    "heatmap",
    "details",
    "agent",
    "main",
)
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")


def page(artifact: Artifact, limits: Limits | None = None) -> str:
    """The artifact as one self-contained HTML page."""
    name = Path(artifact.path).resolve().name if artifact.path else "recording"
    style, script = source("style.css"), _script()
    parts = {
        "title": html.escape(visible(name)),
        "policy": policy(style, script),
        "style": style,
        "script": script,
        "data": embeddable(page_data(artifact, name, limits)),
    }
    return _PLACE.sub(lambda place: parts[place[1]], source("page.html"))


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy of a page: this style, this script, and nothing else."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


@cache
def _script() -> str:
    """The modules as one script."""
    return "\n".join(map(_module, _MODULES))


def _module(name: str) -> str:
    """A module as a function that returns what it exports."""
    text = source(f"{name}.js")
    exported = ", ".join(found[1] for found in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = $\2;", text))
    return f"const ${name} = (() => {{\n{body}return {{ {exported} }};\n}})();"


@cache
def source(name: str) -> str:
    """One of the page's sources."""
    return (files("neuronscope.viewer") / "html" / name).read_text("utf-8")
