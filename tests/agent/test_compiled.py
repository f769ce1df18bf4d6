"""Compiled functions and their twins in Python: the same values, whatever they are given."""

from __future__ import annotations

import enum
import gc
import importlib.util
import os
import subprocess
import sys
import time
import weakref
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from opentelemetry.context import Context
from pydantic import BaseModel

from building import build_script
from growth import traced_growth
from neuronscope import compiled
from neuronscope.engine import chunks, content, facts, histogram, ids, opening, seam, sizes
from neuronscope.governor.purse import Purse
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.testing import fixed
from neuronscope_exporters.otlp.attributes import TWINS
from neuronscope_instrumentation.common import fields

NATIVE: Any = compiled.MODULE
everything = settings(max_examples=200, deadline=None, database=None, derandomize=True)


class Word(enum.StrEnum):
    A = "a"


class Text(str):
    """A string that is no plain one."""


class Whole(int):
    """An int that is no plain one."""


_texts = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "a", "\ud800", "\ud83d\ude00", "x" * 300, Word.A, Text("t")])
)
_scalars = st.one_of(
    _texts,
    st.booleans(),
    st.integers(),
    st.floats(),
    st.none(),
    st.sampled_from([Whole(3), 1 << 70, -1, 0, 4096]),
)
_values = st.one_of(
    _scalars,
    st.binary(max_size=4),
    st.lists(_scalars, max_size=4),
    st.lists(_scalars, max_size=4).map(tuple),
    st.dictionaries(_texts, _scalars, max_size=2),
    st.builds(object),
)
_keys = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [names.REQUEST_MODEL, names.INPUT_MESSAGES, names.RETRIEVAL_IDS, "url.full", "é", Text("k")]
    ),
    st.integers(0, 3),
)
_mappings = st.dictionaries(_keys, _values, max_size=8)


class Odd(Mapping[Any, Any]):
    """Attributes that are no dictionary, as an SDK's span has them."""

    def __init__(self, inner: dict[Any, Any]) -> None:
        self._inner = inner

    def __getitem__(self, key: Any) -> Any:
        return self._inner[key]

    def __iter__(self) -> Any:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class Model(BaseModel, extra="allow"):
    id: Any = None
    model: Any = None


class Plain:
    def __init__(self, **own: Any) -> None:
        vars(self).update(own)


class Told(Struct):
    a: Any = None
    b: Any = None
    c: Any = None


def same(one: object, other: object) -> bool:
    """Equal, and of the same types throughout; NaN is itself."""
    return type(one) is type(other) and repr(one) == repr(other)


def outcome(function: Callable[..., Any], *args: Any) -> object:
    """What a call returns, or which exception it raises."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - whichever it is, the twin has to raise it, too
        return type(error)


def test_here_everything_is_compiled() -> None:
    """Else `python hatch_build.py` is due; a function without its twin would be found by nobody."""
    assert compiled.MODULE is not None, compiled.WHY_NOT
    assert compiled.describe() == "compiled"


def test_the_module_is_compiled_from_these_sources() -> None:
    """Else `python hatch_build.py` is due."""
    assert build_script().NATIVE.digest() == NATIVE.DIGEST


def test_memory_does_not_grow() -> None:
    """No reference is kept: thousands of calls of each kind."""
    policy = content.ContentPolicy(Settings())
    attributes = {"gen_ai.request.model": "m", "é": "ü", "url.full": "x?y", "n": 1 << 70, "list": ["a", 1.5]}
    model = Model.model_validate({"id": "a", "model": 3, "more": "x"})
    read = NATIVE.make_fields(fields.fields_in_python)
    pick = NATIVE.make_pick(fields.fields_in_python)
    tell = NATIVE.make_teller(fields.fields_in_python, _table)
    series = NATIVE.Series((1.0,), [0, 0], [None, None])
    rows: dict[Any, Any] = {(None, None): [None, series, "n", ({}, ())]}

    def everything_once() -> None:
        policy.apply(attributes)
        NATIVE.attributes_bytes(attributes)
        NATIVE.encode_attributes(attributes, 10, TWINS)
        pick(read(model), _table)
        tell({}, model)
        outcome(NATIVE.make_teller, fields.fields_in_python, ("a", ("b", "c", 99), fields.INTO))
        NATIVE.subset(attributes, frozenset({"n"}))
        NATIVE.fill_known(rows, ("a", "b"), {}, 0.5, (1, 2), 3)
        NATIVE.arguments(("a", "b"), 1, (1, 2, 3), {"c": 4})
        NATIVE.with_item(Context, {"a": 1}, "b", 2)
        NATIVE.split_ids(1 << 190)
        outcome(pick, attributes, "nonsense")
        outcome(NATIVE.fill_known, rows, ("a", "b"), {}, "no number", 1, 3)

    def everything(times: int) -> None:
        for _ in range(times):
            everything_once()

    everything(2_000)
    # One leaked object a call would be 280 kB or more.
    assert traced_growth(lambda: everything(5_000), 100_000) < 100_000


@everything
@given(_mappings, st.booleans(), st.booleans(), st.integers(0, 300))
def test_masking(attributes: dict[Any, Any], allowed: bool, odd: bool, limit: int) -> None:
    """Every key and value: what is recorded, and what is told to be cut."""
    policy = content.ContentPolicy(Settings(hash_identifiers=True, attribute_max_length=max(limit, 64)))
    given_: Mapping[Any, Any] = Odd(attributes) if odd else attributes
    before = dict(attributes)
    found: list[Any] = []
    for function in (NATIVE.mask, content.mask_in_python):
        truncated: list[str] = []
        kept = function(given_, content._CLASSES, content._PUBLIC, limit, policy._keep, allowed, truncated)  # pyright: ignore[reportPrivateUsage]
        found.append((sorted(kept.items(), key=repr), truncated))
    assert same(*found)
    assert same(attributes, before)


@everything
@given(_mappings, st.booleans())
def test_sizes(attributes: dict[Any, Any], odd: bool) -> None:
    """What attributes weigh."""
    given_: Any = Odd(attributes) if odd else attributes
    assert NATIVE.attributes_bytes(given_) == sizes.attributes_bytes_in_python(given_)


class _Text(str):
    __slots__ = ()


_held = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.text().map(_Text),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.lists(inner, max_size=9).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.text(), inner).map(Odd)
    ),
    max_leaves=60,
)


@everything
@given(_held)
def test_what_values_hold(value: Any) -> None:
    """Down to the depth that is looked into, and by a sample of long lists."""
    assert NATIVE.make_held_bytes(sizes.held_bytes_in_python)(value) == sizes.held_bytes_in_python(value)


def test_what_values_hold_beyond_all_memory() -> None:
    """One text in many places counts in each: Python's whole numbers have no end."""
    value: Any = "x" * (1 << 20)
    for _ in range(4):
        value = [value] * (1 << 16)
    held = sizes.held_bytes_in_python(value)
    assert held > 1 << 64
    assert NATIVE.make_held_bytes(sizes.held_bytes_in_python)(value) == held


def test_what_an_object_raises_when_it_is_weighed_comes_through() -> None:
    """The guard above counts it."""

    class Broken(dict[str, Any]):
        def values(self) -> Any:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        NATIVE.make_held_bytes(sizes.held_bytes_in_python)({"a": [Broken(x=1)]})


@everything
@given(st.builds(Told, _values, _values, _values))
def test_fields_that_become_attributes(told: Told) -> None:
    """As they are, if they are known."""
    table = ("a", "x", "b", "y", "c", "z")
    one: dict[str, Any] = {"y": 1}
    other: dict[str, Any] = {"y": 1}
    NATIVE.add_fields(one, told, table)
    facts.add_fields_in_python(other, told, table)  # type: ignore[arg-type]  # anything with these fields
    assert same(one, other)


@everything
@given(_values)
def test_readings(value: Any) -> None:
    """One type passes; everything else is None, or nothing."""
    for name in ("text", "number", "count", "items"):
        assert same(getattr(NATIVE, name)(value), getattr(fields, f"{name}_in_python")(value)), name


_sources = st.one_of(
    _mappings,
    st.builds(Model, id=_values, model=_values, more=_values),
    st.builds(Plain, id=_values, model=_values),
    _mappings.map(Odd),
    st.dictionaries(st.sampled_from("ab"), _mappings | st.builds(Plain, id=_values, model=_values)),
    st.none(),
    _scalars,
)
_table = (
    "id", "id", fields.TEXT,
    "model", "target", fields.COUNT,
    "more", "more", fields.NUMBER,
    "a", "b", fields.ANY,
    "model", "some", fields.SOME,
    "id", "told", fields.TRUTH,
    "a", (
        "a", "x", fields.ANY,
        "id", "id", fields.TEXT,
        "b", ("a", "y", fields.TRUTH), fields.INTO,
    ), fields.INTO,
)  # fmt: skip


@everything
@given(_sources)
def test_fields_of_foreign_objects(value: Any) -> None:
    """Pydantic's, dictionaries, other mappings, any object."""
    found = NATIVE.make_fields(fields.fields_in_python)(value)
    wanted = fields.fields_in_python(value)
    assert dict(found) == dict(wanted) or repr(dict(found)) == repr(dict(wanted))
    assert same(
        NATIVE.make_pick(fields.fields_in_python)(found, _table), fields.pick_in_python(wanted, _table)
    )


_telling = (
    "odd", "", fields.ODD,
    "rare", "", fields.RARE,
    "a", ("b", "", fields.ODD, "a", "x", fields.ANY, "id", ("a", "y", fields.TEXTS), fields.ONE), fields.INTO,
    "a constant", "constant", fields.CONSTANT,
    "b", ("a", "z", fields.COUNT, "b", "t", fields.TRUTH), fields.ONE,
    "model", "flag", fields.FLAG,
    "id", "texts", fields.TEXTS,
    "more", "some", fields.SOME,
    "b", "number", fields.NUMBER,
)  # fmt: skip


@everything
@given(
    _sources | st.fixed_dictionaries({"a": _sources, "b": st.lists(_sources, max_size=2), "rare": _scalars}),
    st.integers(0, len(_telling) // 3),
)
def test_facts_told_as_attributes(value: Any, first: int) -> None:
    """The same attributes, and the same answer whether that is all, wherever the table begins."""
    table = _telling[3 * first :]
    told: list[dict[str, Any]] = [{"x": 0}, {"x": 0}]
    found = outcome(NATIVE.make_teller(fields.fields_in_python, table), told[0], value)
    wanted = outcome(fields.tell_in_python, told[1], fields.fields_in_python(value), table)
    assert found == wanted
    assert same(told[0], told[1])


@pytest.mark.parametrize(
    "table", [(), ("a",), ("a", "b", 99), ("a", "b", -1), ("a", "b", fields.INTO), ("a", "b", "c"), None, []]
)
def test_tables_that_are_none(table: Any) -> None:
    """They are refused when the teller is made; an empty one tells nothing."""
    made = outcome(NATIVE.make_teller, fields.fields_in_python, table)
    assert table == () if callable(made) and not isinstance(made, type) else made in (TypeError, ValueError)


@everything
@given(
    st.lists(st.floats(allow_nan=False), max_size=5, unique=True).map(sorted),
    st.lists(st.one_of(st.floats(), st.integers(-(10**6), 10**6)), max_size=12),
    st.booleans(),
)
def test_series_of_histograms(bounds: list[float], values: list[float], seen: bool) -> None:
    """Counts, sums and sightings; what is not finite never enters."""
    series: list[Any] = []
    for kind in (NATIVE.Series, histogram.SeriesInPython):
        one = kind(tuple(bounds), [0] * (len(bounds) + 1), [None] * (len(bounds) + 1))
        for now, value in enumerate(values):
            one.add(value, (7, 8) if seen else None, now)
        series.append((one.counts, one.exemplars, one.sum, one.count, tuple(one.bounds)))
    assert repr(series[0]) == repr(series[1])


@everything
@given(_mappings, st.booleans(), st.frozensets(st.text(max_size=2)))
def test_some_of_what_is_told(told: dict[Any, Any], odd: bool, names_: frozenset[str]) -> None:
    """Those of these names."""
    given_: Mapping[Any, Any] = Odd(told) if odd else told
    wanted = names_ | set(list(told)[::2])
    assert same(NATIVE.subset(given_, wanted), fields.subset_in_python(given_, wanted))


@everything
@given(st.lists(st.tuples(st.sampled_from([1, -1]), st.integers(1, 100)), max_size=20))
def test_observed_intervals(steps: list[tuple[int, int]]) -> None:
    """The union of intervals, compiled and under a lock."""
    quick, slow = Purse(5, lambda: 0, None, None, None), Purse(5, lambda: 0, None, None, None)
    now = 0
    for by, passed in steps:
        now += passed
        (quick.began if by > 0 else quick.ended)(now)
        slow.enter("", 0, now) if by > 0 else slow.leave("", 0, now)
    one, other = quick._work, slow._work  # pyright: ignore[reportPrivateUsage]
    assert (one.active, one.since, one.closed_ns) == (other.active, other.since, other.closed_ns)


_rows = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from(["series", "counter", None])),
    max_size=5,
)


@everything
@given(_rows, st.dictionaries(st.sampled_from("abc"), _values), st.integers(0, 2), st.booleans())
def test_rows_of_a_call_s_metrics(
    rows: list[tuple[str | None, str | None]], told: dict[str, Any], first: int, known: bool
) -> None:
    """What is recorded, and which row is told to be missing."""

    def made(kind: Any, what: str | None) -> Any:
        if what == "series":
            return kind((1.0, 5.0), [0, 0, 0], [None] * 3)
        return None if what is None else ({(("k", "v"),): 1}, (("k", "v"),))

    results: list[object] = []
    for kind, fill, fill_known in (
        (NATIVE.Series, NATIVE.fill, NATIVE.fill_known),
        (histogram.SeriesInPython, histogram.fill_in_python, histogram.fill_known_in_python),
    ):
        own: list[Any] = [cell for key, what in rows for cell in (key, made(kind, what))]
        call = (told, 0.5, (7, 8), 9)
        if known:
            rows_of: dict[tuple[object, ...], list[Any]] = (
                {(told.get("a"), None): own} if _hashes(told.get("a")) else {}
            )
            missing = outcome(lambda: (fill_known(rows_of, ("a", "x"), *call) or (None, -1))[1])  # noqa: B023
        else:
            missing = outcome(fill, own, 2 * first, *call)
        shown: list[Any] = [
            (each.counts, each.exemplars, each.sum) if isinstance(each, kind) else each for each in own[1::2]
        ]
        results.append((missing, repr(shown)))
    assert results[0] == results[1]


def _hashes(value: object) -> bool:
    return not isinstance(value, list | dict | tuple)


@everything
@given(
    st.lists(st.text(max_size=3), max_size=4, unique=True).map(tuple),
    st.integers(0, 2),
    st.lists(_scalars, max_size=6).map(tuple),
    st.dictionaries(st.text(max_size=3), _scalars, max_size=3),
)
def test_arguments_by_name(
    parameters: tuple[str, ...], first: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Keywords win; the caller's dictionary is not the one that is returned."""
    found = NATIVE.arguments(parameters, first, args, kwargs)
    assert same(found, seam.arguments_in_python(parameters, first, args, kwargs))
    assert found is not kwargs


@everything
@given(st.integers(0, (1 << 192) - 1) | st.sampled_from([0, 1 << 64, (1 << 64) - 1]))
def test_ids_are_never_zero(bits: int) -> None:
    """Zero means no id to OpenTelemetry."""
    found = NATIVE.split_ids(bits)
    assert found == ids.split_ids_in_python(bits)
    assert all(found)


def test_a_context_with_another_item_is_new() -> None:
    """Of OpenTelemetry's own kind, which refuses to be changed."""
    for context in (Context(), Context({"a": 1})):
        found = NATIVE.with_item(Context, context, "k", 2)
        assert found == opening.with_item_in_python(Context, context, "k", 2)
        assert type(found) is Context
        assert "k" not in context


_NONSENSE = """
from neuronscope import compiled

odd = [None, 1, "x", (), [], {}, object(), (1, 2, 3), (None,) * 4]
for name, function in sorted(vars(compiled.MODULE).items()):
    if name.startswith("__") or not callable(function):
        continue
    print(name, flush=True)
    for given in ([*first, *[value] * n] for n in range(8) for value in odd for first in ([], [{}])):
        try:
            function(*given)
        except Exception:
            pass
print("alive")
"""


def test_nonsense_is_refused_and_never_crashes() -> None:
    """Wrong numbers and kinds of arguments raise; the process lives.

    One of its own: some of these functions bind what they are given, for as long as the process lives.
    """
    run = subprocess.run(
        [sys.executable, "-c", _NONSENSE], capture_output=True, text=True, timeout=250, check=False
    )
    *called, last = run.stdout.split()
    assert (run.returncode, last) == (0, "alive"), f"after {called[-1:]}: {run.stderr}"
    assert called == [
        name for name in dir(NATIVE) if callable(getattr(NATIVE, name)) and not name.startswith("__")
    ]


def test_a_library_older_than_its_sources_is_not_used(tmp_path: Path) -> None:
    """A checkout that moved on: the functions may take other arguments now."""
    library, sources = tmp_path / "_native.abi3.so", tmp_path / "_native"
    sources.mkdir()
    for file in (library, sources / "wire.c"):
        file.touch()
    os.utime(library, (2_000, 2_000))
    os.utime(sources / "wire.c", (1_000, 1_000))
    assert not compiled.is_older_than_its_sources(library)
    os.utime(sources / "wire.c", (3_000, 3_000))
    assert compiled.is_older_than_its_sources(library)
    (sources / "wire.c").unlink()
    assert not compiled.is_older_than_its_sources(library), "what is installed comes without sources"


def test_switched_off_the_twins_run() -> None:
    """`NEURONSCOPE_NATIVE=false`: same names, all in Python, and `describe` says why."""
    script = (
        "from neuronscope import compiled\n"
        "from neuronscope.engine import content, sizes\n"
        "print(compiled.describe(), content._mask is content.mask_in_python,"
        " sizes.attributes_bytes is sizes.attributes_bytes_in_python)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, compiled.SWITCH: "false"},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert run.stdout.strip() == "Python (NEURONSCOPE_NATIVE switches it off) True True"


@everything
@given(st.lists(st.sampled_from(["take", "asked", "seen", "hand over"]), max_size=120))
def test_chunks_of_a_stream(steps: list[str]) -> None:
    """The same chunks are kept, and the same are timed, whatever is asked in whatever order."""
    pair: list[Any] = [NATIVE.Chunks(), chunks.ChunksInPython()]
    for n, step in enumerate(steps):
        told: list[Any] = []
        for each in pair:
            if step == "take":
                told.append(each.take(n))
            elif step == "asked":
                told.append((each.asked(), each.held_ns > 0))
            elif step == "seen":
                each.waits = not each.waits
                told.append(each.waits)
            else:
                told.append(each.hand_over())
        assert told[0] == told[1]
        assert (pair[0].kept, pair[0].count, len(pair[0].times())) == (
            pair[1].kept,
            pair[1].count,
            8 * pair[1].count,
        )
    for each in pair:
        times = array("q", each.times())
        assert list(times) == sorted(times)
        assert each.last == (times[-1] if times else 0)


def test_chunks_are_timed_by_the_clock_of_streams() -> None:
    """What the compiled one reads is between two readings of Python's; a clock of tests is obeyed."""
    seen = chunks.new_chunks()
    before = time.perf_counter_ns()
    seen.take(1)
    assert before <= seen.last <= time.perf_counter_ns()
    with fixed():
        assert type(chunks.new_chunks()) is chunks.ChunksInPython


def test_chunks_that_hold_their_stream_are_collected() -> None:
    """A stream that is in its own chunk goes all the same."""

    class Held:
        pass

    held = Held()
    seen = NATIVE.Chunks()
    seen.take([held, seen])
    gone = weakref.ref(held)
    del held, seen
    gc.collect()
    assert gone() is None


def test_sources_that_nobody_compiled_are_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout without a C compiler: Python's twins run, and it says why."""
    import neuronscope

    (tmp_path / "_native").mkdir()
    monkeypatch.setattr(neuronscope, "__path__", [str(tmp_path)])
    monkeypatch.delattr(neuronscope, "_native", raising=False)
    monkeypatch.delitem(sys.modules, "neuronscope._native", raising=False)
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    spec = importlib.util.spec_from_file_location("compiled_again", compiled.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    sys.modules.pop("neuronscope._native", None)
    assert again.MODULE is None
    assert again.describe() == "Python (this package was built without a C compiler or Python's headers)"
