"""Reads shell commands of the documentation, and holds those of ours to the real command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import click

from neuronscope.cli import cli

_SEPARATORS = {";", "|", "||", "&&", "&", "(", ")", ";;"}
_KEYWORDS = {"do", "then", "else", "time", "exec", "sudo"}
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")


def commands(code: str) -> Iterator[list[str]]:
    """The simple commands of a script, without assignments before them."""
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";|&()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            words = list(lexer)
        except ValueError:  # a text in quotes that goes on in the next line
            continue
        yield from _split(words)


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            if command:
                yield command
            command = []
        elif command or not (_ASSIGNMENT.match(word) or word in _KEYWORDS):
            command.append(word)


def ours(command: Sequence[str]) -> list[str] | None:
    """The arguments, if the command is `neuronscope` in one of its spellings."""
    if command[:1] == ["neuronscope"]:
        return list(command[1:])
    return list(command[3:]) if list(command[1:3]) == ["-m", "neuronscope"] else None


def problem(arguments: Sequence[str]) -> str | None:
    """Why the command line would refuse these arguments; None if it would not."""
    found: click.Command = cli
    rest = list(arguments)
    while isinstance(found, click.Group):
        if not rest or rest[0] in {"-h", "--help", "--version"}:
            return None
        name = rest.pop(0)
        below = found.get_command(click.Context(found), name)
        if below is None:
            return f"there is no command {name!r}"
        found = below
    context = click.Context(found, info_name=found.name, **found.context_settings)
    try:
        values, _, _ = found.make_parser(context).parse_args(rest)
        for parameter in found.params:
            one = values.get(parameter.name or "")
            if not isinstance(one, str) or "$" in one or one.isupper() or "FROM" in one:
                continue  # a variable, or a word that stands for a value
            if isinstance(parameter.type, click.Choice):
                parameter.type.convert(one, parameter, context)
            elif parameter.callback is not None:
                parameter.callback(context, parameter, one)
    except click.UsageError as error:
        return error.format_message()
    return None
