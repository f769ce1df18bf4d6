"""Whether a statement compares vectors, and what it says about it: told by pgvector's operators and types.

This is no parser of SQL.  Strings and comments are blanked out, so that nothing in them is taken for syntax;
after that a few keywords and operators are looked for, at the level of parentheses where they count.  What is
not found is unknown.  Statements are read once each: a service sends the same few over and over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

MAX_CACHED: Final = 512
# Longer statements hold vectors as literals, so that no two are alike.
MAX_CACHED_LENGTH: Final = 4_096
METRICS: Final = {
    "<->": "euclid",
    "<#>": "dot_negative",
    "<=>": "cosine_distance",
    "<+>": "manhattan",
    "<~>": "hamming",
    "<%>": "jaccard",
}
# Similarities that are written as one minus a distance, or as its negative.
_COMPLEMENT: Final = {"cosine_distance": "cosine", "jaccard": "jaccard_similarity"}
_NEGATIVE: Final = {"dot_negative": "dot"}
# Other extensions compare trigrams, words or points with `<->`: there a vector has to be seen as well.
AMBIGUOUS: Final = "<->"

_FIRST_WORD: Final = re.compile(r"(?:\s+|\(|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)
_OPERATOR: Final = re.compile(r"<(?:->|#>|=>|\+>|~>|%%?>)")
_QUOTED: Final = re.compile(
    r"[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|\$([A-Za-z_]\w*|)\$.*?\$\1\$", re.DOTALL
)
_VECTOR_TYPE: Final = re.compile(
    r"::\s*(?:\w+\.)?(?:vector|halfvec|sparsevec)\b|\bAS\s+(?:vector|halfvec|sparsevec)\b", re.IGNORECASE
)
_LONG_LITERAL: Final = re.compile(r"'\[[^'\]]*\]'")
_SHORT_LITERAL: Final = "'[0]'"
_VECTOR_LITERAL: Final = re.compile(r"'\s*\[\s*[-+.\d]")
_WRITTEN: Final = re.compile(
    r"\b(?:INSERT\s+INTO|MERGE\s+INTO(?:\s+ONLY)?|DELETE\s+FROM(?:\s+ONLY)?|UPDATE(?:\s+ONLY)?)\s+([\w.\"]+)",
    re.IGNORECASE,
)
_FROM: Final = re.compile(r"\bFROM\s+(?:ONLY\s+)?([\w.\"]+)", re.IGNORECASE)
_SELECT: Final = re.compile(r"\bSELECT\b(?:\s+ALL\b|\s+DISTINCT\b(?:\s+ON\s*\(\s*\))?)?", re.IGNORECASE)
_WHERE: Final = re.compile(r"\bWHERE\b", re.IGNORECASE)
_ORDER: Final = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)
_PLACE: Final = r"(?:%s|%b|%t|%\((?P<name>[^)]*)\)[sbt]|\$(?P<number>\d+)|(?P<literal>'[^']*'|\d+))"
_LIMIT: Final = re.compile(r"\b(?:LIMIT|FETCH\s+(?:FIRST|NEXT))\s+\(?\s*" + _PLACE, re.IGNORECASE)
_AFTER: Final = re.compile(r"\s*\(*\s*(?:CAST\s*\(\s*)?" + _PLACE, re.IGNORECASE)
_BEFORE: Final = re.compile(_PLACE + r"\s*(?:::\s*\w+(?:\(\d+\))?)?\s*\)*\s*$", re.IGNORECASE)
_ANONYMOUS: Final = re.compile(r"(?<!%)%[sbt]")
_ALIAS: Final = re.compile(r"\bAS\s+(\"[^\"]+\"|\w+)\s*$", re.IGNORECASE)
_CALL: Final = re.compile(r"([A-Za-z_]\w*)\s*\(")
_TYPES: Final = frozenset({"vector", "halfvec", "sparsevec", "bit", "cast"})
_READS: Final = frozenset({"SELECT", "WITH"})
_WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_UNNAMED: Final = "?column?"  # what PostgreSQL calls an expression without a name


class Place(NamedTuple):
    """Where a value is: a parameter by position or name, or a literal in the statement."""

    position: int | None = None
    name: str | None = None
    literal: str | None = None


class Score(NamedTuple):
    """The result's column that holds the distance or similarity, and how to read it."""

    column: str
    metric: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement says.

    Attributes:
        operation: its first word: ``SELECT``, ``INSERT`` and so on.
        table: the table that is searched or written.
        metric: how vectors are compared; None if they are not.
        search: it orders or restricts rows by that comparison.
        certain: it deals with vectors for sure; else its parameters tell.
        query: the vector compared with.
        limit: rows asked for.
        filtered: rows are restricted.
        score: the column of scores.
    """

    operation: str
    table: str | None = None
    metric: str | None = None
    search: bool = False
    certain: bool = False
    query: Place | None = None
    limit: Place | None = None
    filtered: bool = False
    score: Score | None = None


def read(text: str) -> Statement | None:
    """What `text` says about vectors; None if it cannot be about them."""
    if len(text) <= MAX_CACHED_LENGTH:
        return _read_once(text)
    # Without its vectors a statement is one of the same few again.
    statement = _read_once(_LONG_LITERAL.sub(_SHORT_LITERAL, text))
    if statement is None or statement.query is None or statement.query.literal != _SHORT_LITERAL.strip("'"):
        return statement
    found = _LONG_LITERAL.search(text)
    return replace(statement, query=Place(literal=found[0].strip("'"))) if found else statement


def _read(text: str) -> Statement | None:
    first = _FIRST_WORD.match(text)
    operation = first[1].upper() if first is not None else ""
    if operation in _WRITES:
        return _write(text, operation)
    if operation in _READS and _OPERATOR.search(text):
        return _select(text)
    return None


_read_once = lru_cache(MAX_CACHED)(_read)


def _write(text: str, operation: str) -> Statement:
    table = _WRITTEN.search(text)
    certain = bool(_VECTOR_TYPE.search(text) or _VECTOR_LITERAL.search(text))
    return Statement(operation, _plain(table[1]) if table else None, certain=certain)


def _select(text: str) -> Statement | None:
    masked = _QUOTED.sub(_blank, text)
    operators = list(_OPERATOR.finditer(masked))
    if not operators:
        return None
    first = operators[0]
    block = _Block.around(masked, first.start())
    operator = first[0].replace("%%", "%")
    where, order, table = (found.search(block.flat) for found in (_WHERE, _ORDER, _FROM))
    metric = METRICS[operator]
    limit = _LIMIT.search(block.text)
    return Statement(
        operation="SELECT",
        table=_plain(table[1]) if table else None,
        metric=metric,
        search=order is not None
        or (where is not None and any(found.start() > where.start() for found in operators)),
        certain=operator != AMBIGUOUS or bool(_VECTOR_TYPE.search(masked) or _VECTOR_LITERAL.search(text)),
        query=next(_operands(text, masked, operators), None),
        limit=_place(text, limit) if limit else None,
        filtered=where is not None,
        score=_score(block, metric),
    )


def _blank(found: re.Match[str]) -> str:
    """Spaces in place of a comment, and of everything between quotes."""
    length = len(found[0])
    return " " * length if found[0][0] in "-/" else "'" + " " * (length - 2) + "'"


class _Block(NamedTuple):
    """One SELECT of a statement, at its own place in the text, everything else blanked out.

    Attributes:
        text: without the SELECTs inside it.
        flat: without anything in parentheses.
    """

    text: str
    flat: str

    @classmethod
    def around(cls, masked: str, position: int) -> _Block:
        """The innermost SELECT that holds `position`."""
        pairs = list(_parentheses(masked))
        inner = [pair for pair in pairs if _is_select(masked, pair[0])]
        start, end = min(
            ((a, b) for a, b in inner if a < position < b),
            default=(-1, len(masked)),
            key=lambda pair: pair[1] - pair[0],
        )
        text = list(" " * (start + 1) + masked[start + 1 : end])
        flat = text.copy()
        for a, b in pairs:
            if start < a and b < end:
                _spaces(flat, a, b)
                if (a, b) in inner:
                    _spaces(text, a, b)
        return cls("".join(text), "".join(flat))


def _parentheses(masked: str) -> Iterator[tuple[int, int]]:
    opened: list[int] = []
    for found in re.finditer(r"[()]", masked):
        if found[0] == "(":
            opened.append(found.start())
        elif opened:
            yield opened.pop(), found.start()


def _is_select(masked: str, parenthesis: int) -> bool:
    word = _FIRST_WORD.match(masked, parenthesis + 1)
    return word is not None and word[1].upper() in _READS


def _spaces(text: list[str], start: int, end: int) -> None:
    """Blank out what is between two parentheses; they stay."""
    text[start + 1 : end] = " " * (end - start - 1)


def _operands(text: str, masked: str, operators: list[re.Match[str]]) -> Iterator[Place]:
    """Values next to an operator."""
    for operator in operators:
        found = _AFTER.match(masked, operator.end()) or _BEFORE.search(masked[: operator.start()])
        if found is not None:
            yield _place(text, found)


def _place(text: str, found: re.Match[str]) -> Place:
    if found["name"] is not None:
        return Place(name=found["name"])
    if found["number"] is not None:
        return Place(position=int(found["number"]) - 1)
    if found["literal"] is not None:
        return Place(literal=text[found.start("literal") : found.end("literal")].strip("'"))
    return Place(position=sum(1 for _ in _ANONYMOUS.finditer(text, 0, found.end())) - 1)


def _score(block: _Block, metric: str) -> Score | None:
    """The item of the select list that *is* the comparison, not one computed from it."""
    select, end = _SELECT.search(block.flat), re.search(r"\bFROM\b", block.flat, re.IGNORECASE)
    if select is None or end is None:
        return None
    commas = [
        found.start() for found in re.finditer(",", block.flat) if select.end() <= found.start() < end.start()
    ]
    for a, b in zip([select.end(), *(comma + 1 for comma in commas)], [*commas, end.start()], strict=True):
        item = block.text[a:b]
        if not _OPERATOR.search(item):
            continue
        if {call.lower() for call in _CALL.findall(item)} - _TYPES:
            return None
        alias = _ALIAS.search(item)
        read_as = _reading(item[: alias.start()] if alias else item, metric)
        name = _plain(alias[1]) if alias else _UNNAMED
        return Score(name, read_as) if read_as else None
    return None


def _reading(item: str, metric: str) -> str | None:
    """How the value of an expression reads: the operator's distance, or a similarity made from it."""
    text = re.sub(r"\s+", "", item)
    outside = re.sub(r"^.*?(?=<)", "", text)
    if text.startswith("1-"):
        return _COMPLEMENT.get(metric)
    if text.startswith(("-(", "-1*(", "(-1)*")) or outside.endswith((")*-1", ")*(-1)")):
        return _NEGATIVE.get(metric)
    return metric if not re.search(r"[*/]", text) else None


def _plain(name: str) -> str:
    """A name as PostgreSQL tells it: folded to lower case unless it is quoted."""
    return ".".join(part.strip('"') if part.startswith('"') else part.lower() for part in name.split("."))
