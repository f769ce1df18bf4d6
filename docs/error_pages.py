"""The reference pages of exceptions: a head that follows from the code, above a text written by hand."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final

from made_pages import REFERENCE, page
from neuronscope import exceptions
from neuronscope.dashboards.runbooks import renewed
from neuronscope.interventions import errors as of_interventions

HEAD: Final = "<!-- made by docs/generate.py: edit below -->"
TODO: Final = "\n\n## When\n\n## What to do\n"


def error_classes() -> list[type[exceptions.NeuronscopeError]]:
    """The public exceptions, roots before leaves."""
    found = {
        one
        for module in (exceptions, of_interventions)
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, exceptions.NeuronscopeError)
    }
    return sorted(found, key=lambda one: [base.__name__ for base in reversed(_ours(one))])


def _ours(one: type[exceptions.NeuronscopeError]) -> list[type[exceptions.NeuronscopeError]]:
    """The exception and what it is a kind of, up to the root."""
    return [base for base in one.__mro__ if issubclass(base, exceptions.NeuronscopeError)]


def error_pages() -> dict[str, str]:
    """A page for each exception, and the tree of them."""
    found = {"errors/README.md": _tree()}
    for one in error_classes():
        name = f"errors/{one.__name__}.md"
        found[name] = renewed(REFERENCE / name, f"# {one.__name__}\n\n{HEAD}\n\n{_head(one)}", TODO)
    return found


def _head(one: type[exceptions.NeuronscopeError]) -> str:
    bases = [
        f"[{base.__name__}]({base.__name__}.md)"
        if issubclass(base, exceptions.NeuronscopeError)
        else f"`{base.__name__}`"
        for base in one.__bases__
        if base is not Exception
    ]
    first, _, more = inspect.cleandoc(one.__doc__ or "").partition("\n\n")
    kept = [first.replace("\n", " ")]
    summary, mark, listed = more.partition("Attributes:\n")
    if summary.strip():
        kept += ["", " ".join(summary.split())]
    if mark:
        told = inspect.cleandoc(listed).replace("``", "`")
        kept += ["", "Attributes:", "", *(f"- {line}" for line in _joined(told))]
    place = f"`{_public(one)}`" + (f"; also caught as {', '.join(bases)}" if bases else "")
    return "\n".join([place, "", *kept])


def _joined(text: str) -> list[str]:
    """Lines of a list of attributes; one that goes on is joined to the one it belongs to."""
    lines: list[str] = []
    for line in text.splitlines():
        name, colon, meaning = line.partition(":")
        if colon and name.isidentifier():
            lines.append(f"`{name}`:{meaning}")
        else:
            lines[-1] += " " + line.strip()
    return lines


def _public(one: type[exceptions.NeuronscopeError]) -> str:
    face = import_module("neuronscope")
    if one.__name__ in face.__all__:
        return f"ns.{one.__name__}"
    inside = one.__module__ == of_interventions.__name__
    return f"{'neuronscope.interventions' if inside else one.__module__}.{one.__name__}"


def _tree() -> str:
    lines = page(
        "Errors",
        """\
Everything that NeuronScope raises on purpose. It is raised at set-up, by scopes, traces and tools:
inside a call of your service nothing of ours is raised. `except ns.NeuronscopeError` catches all of
it.
""",
    )
    for one in error_classes():
        indent = "    " * (len(_ours(one)) - 1)
        first = inspect.cleandoc(one.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        lines.append(f"{indent}- [{one.__name__}]({one.__name__}.md): {first}")
    return "\n".join(lines) + "\n"
