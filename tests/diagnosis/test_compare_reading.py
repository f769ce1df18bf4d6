"""What a comparison reads: files, directories, ranks, windows, damaged and unfinished ones, samples."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed
from tests.diagnosis.side import START, Service

import neuronscope as ns
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.diagnosis.comparing.reading import Reader, Window
from neuronscope.diagnosis.comparing.result import Side, Verdict
from neuronscope.diagnosis.kinds import Kind
from neuronscope.exceptions import NszError
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

BEFORE, AFTER = Service(seed=1), Service(seed=2)


def saved(path: Path, spans: list[SpanRecord], **resource: str) -> Path:
    """A `.nsz` file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Artifact(Telemetry(spans, []), ({"service.name": "ask", **resource},)).save(path)
    return path


def side_of(source: Path, window: Window | None = None) -> Side:
    """What was read of one side."""
    reader = Reader(window)
    reader.read(source)
    return reader.side()


def test_a_file_an_artifact_and_spans_read_alike(tmp_path: Path) -> None:
    """The same rows from wherever they come."""
    spans = BEFORE.spans()
    path = saved(tmp_path / "a.nsz", spans)
    sources = (path, str(path), [path], ns.load(path), spans)
    found = [ns.compare(source, AFTER.spans()) for source in sources]
    assert {(item.before.traces, item.before.spans, item.tests) for item in found} == {
        (120, 480, found[0].tests)
    }
    assert found[0].before.services == ("ask",)
    assert found[0].before.calls == {"chat": 120, "embeddings": 120, "retrieval": 120}


def test_segments_and_ranks_are_one_recording(tmp_path: Path) -> None:
    """A trace whose spans are in two files is one trace."""
    spans = BEFORE.spans()
    for place in range(3):
        saved(tmp_path / "segments" / f"{place}.nsz", spans[place::3])
        saved(tmp_path / "ranks" / f"rank-{place}" / "a.nsz", spans[place::3])
    for folder in ("segments", "ranks"):
        assert (side_of(tmp_path / folder).traces, side_of(tmp_path / folder).spans) == (120, 480)
    assert ns.compare(tmp_path / "segments", tmp_path / "ranks").verdict is Verdict.NO_CHANGE


def test_two_windows_of_one_recorder(tmp_path: Path) -> None:
    """Before and after a deployment, in one directory."""
    shift = 1_000 * 10**9
    later = [
        changed(span, start_unix_ns=span.start_unix_ns + shift, end_unix_ns=span.end_unix_ns + shift)
        for span in replace(AFTER, pieces=(11, 44, 33)).spans()
    ]
    path = saved(tmp_path / "a.nsz", [*BEFORE.spans(), *later])
    middle = START + 500 * 10**9
    result = ns.compare(path, path, window_before=Window(end=middle), window_after=Window(start=middle))
    assert (result.before.traces, result.after.traces) == (120, 120)
    assert result.kinds == (Kind.PROMPT_CHANGED,)


@pytest.mark.parametrize("cut", [0.5, 0.9, 0.999])
def test_a_torn_file_is_read_as_far_as_it_goes_and_it_says_so(tmp_path: Path, cut: float) -> None:
    """What is there is compared; what is not is told."""
    path = saved(tmp_path / "a.nsz", replace(BEFORE, n=400).spans())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    result = ns.compare(path, saved(tmp_path / "b.nsz", replace(AFTER, n=400).spans()))
    assert result.before.damage
    assert result.causes == ()


def test_a_damaged_middle_costs_what_was_in_it(tmp_path: Path) -> None:
    """The rest is compared."""
    path = saved(tmp_path / "a.nsz", replace(BEFORE, n=2_000).spans())
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 2, len(data) // 2 + 20_000, 1_000):  # some hit an index that nobody reads
        data[place : place + 64] = bytes(64)
    path.write_bytes(data)
    side = side_of(path)
    assert side.damage
    assert 0 < side.spans < 8_000


def test_an_unreadable_file_of_a_directory_is_told(tmp_path: Path) -> None:
    """The others are read."""
    saved(tmp_path / "a.nsz", BEFORE.spans())
    (tmp_path / "b.nsz").write_bytes(b"PK\x03\x04 no recording")
    side = side_of(tmp_path)
    assert side.spans == 480
    assert any("b.nsz" in text for text in side.damage)


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    """A path that does not exist, and a file that is something else."""
    (tmp_path / "b.nsz").write_bytes(b"PK\x03\x04 no recording")
    with pytest.raises(NszError):
        ns.compare(tmp_path / "b.nsz", tmp_path / "b.nsz")
    with pytest.raises(FileNotFoundError):
        ns.compare(tmp_path / "none.nsz", tmp_path / "none.nsz")


def test_a_sampled_recording_is_taken_by_its_weights(tmp_path: Path) -> None:
    """Errors are kept for certain: they must not look as frequent as they are in the file."""
    sampled: list[SpanRecord] = []
    for number, trace in enumerate(_traces(replace(AFTER, n=2_000))):
        failed = number % 100 == 0
        if failed or number % 10 == 1:
            more: dict[str, str | float] = {names.SAMPLING_WEIGHT: 1.0 if failed else 10.0}
            more |= {names.ERROR_TYPE: "APIError"} if failed else {}
            sampled += [changed(span, attributes={**span.attributes, **more}) for span in trace]
    result = ns.compare(replace(BEFORE, n=400).spans(), sampled)
    assert result.after.sampled == pytest.approx(2_000, rel=0.02)
    assert result.kinds == ()


def test_what_a_process_runs_on_is_compared(tmp_path: Path) -> None:
    """Libraries and hardware are in the resource; another version of the service is what one compares."""
    old = {
        "process.runtime.version": "3.12.1",
        names.PACKAGES: ["torch 2.9.0", "numpy 2.4.0"],
        "service.version": "1",
    }
    new = {**old, names.PACKAGES: ["torch 2.10.0", "numpy 2.4.0"], "service.version": "2"}
    sides = [
        Artifact(Telemetry(service.spans(), []), (resource,))
        for service, resource in ((BEFORE, old), (AFTER, new), (AFTER, {**old, "service.version": "2"}))
    ]
    result = ns.compare(sides[0], sides[1])
    assert result.kinds == (Kind.ENVIRONMENT_CHANGED,)
    assert result.causes[0].subject == "torch"
    assert ns.compare(sides[0], sides[2]).kinds == ()


@pytest.mark.parametrize(
    ("changes", "subject", "told"),
    [
        ({names.GPU_DRIVER: "580.65.06"}, "GPU driver", "580.65.06"),
        ({names.GPUS: ["NVIDIA L4 ×1"]}, "NVIDIA H200, NVIDIA L4", "NVIDIA L4"),
        ({names.GPUS: ["NVIDIA H200 ×2"]}, "NVIDIA H200", "×2"),
        ({"host.cpu.model.name": "Ampere-1a"}, "processor", "Ampere-1a"),
        ({"host.arch": "aarch64"}, "architecture", "aarch64"),
        ({names.GPUS: [], names.GPU_DRIVER: None}, "GPU driver, NVIDIA H200", "gone"),
    ],
)
def test_another_driver_or_other_hardware_is_told(changes: dict[str, Any], subject: str, told: str) -> None:
    """By the driver's version, the models of processors and how many; not by libraries alone."""
    old: dict[str, Any] = {
        names.GPU_DRIVER: "570.86.10",
        names.GPUS: ["NVIDIA H200 ×1"],
        "process.runtime.version": "3.12.1",
        "host.cpu.model.name": "EPYC 9654",
        "host.arch": "x86_64",
        names.PACKAGES: ["torch 2.9.0"],
    }
    sides = [
        Artifact(Telemetry(service.spans(), []), (resource,))
        for service, resource in ((BEFORE, old), (AFTER, {**old, **changes}))
    ]
    result = ns.compare(*sides)
    assert result.kinds == (Kind.ENVIRONMENT_CHANGED,)
    assert result.causes[0].subject == subject
    assert told in result.causes[0].summary


@pytest.mark.parametrize(
    "strange", [7, "text", (1, "x"), True, float("nan"), float("inf"), b"bytes", (("a",),)]
)
def test_attributes_of_another_type_than_they_should_have_are_as_good_as_none(strange: object) -> None:
    """A stranger's recording may hold anything under our names: it is compared, no traceback."""
    spans: list[SpanRecord] = []
    for span in BEFORE.spans():
        held = {**span.attributes, **dict.fromkeys(LISTS, strange)}
        kept = {key: value if key == names.OPERATION_NAME else strange for key, value in held.items()}
        spans.append(changed(span, attributes=kept))
    found = ns.compare(spans, AFTER.spans())
    assert found.before.calls == {"chat": 120, "embeddings": 120, "retrieval": 120}


LISTS = (names.LAYERS_IDS, names.LAYERS_MEAN, names.PROMPT_PIECES, names.RETRIEVAL_IDS, names.SAMPLING_WEIGHT)


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    """Each step tells how far it is."""
    told: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def step(name: str) -> Generator[Callable[[int, int], None]]:
        def note(done: int, total: int) -> None:
            told.setdefault(name, []).append((done, total))

        yield note

    path = saved(tmp_path / "a.nsz", BEFORE.spans())
    ns.compare(path, path, step=step)
    assert set(told) == {"reading before", "reading after", "comparing"}
    assert all(steps[-1][0] == steps[-1][1] for steps in told.values())


def _traces(service: Service) -> list[list[SpanRecord]]:
    found: dict[int, list[SpanRecord]] = {}
    for span in service.spans():
        found.setdefault(span.trace_id, []).append(span)
    return list(found.values())
