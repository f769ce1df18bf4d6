"""Tools over files, given what a hurried person gives them: one line says what came, with an exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind

from neuronscope.cli import main
from neuronscope.signals.records import SpanRecord
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import codec

TOOLS = {
    "check": ["check"],
    "ls": ["ls"],
    "view": ["view"],
    "merge": ["merge", "-o", "out.nsz"],
    "cut": ["cut", "-o", "out.nsz"],
    "perfetto": ["export", "--to", "perfetto", "-o", "out.json"],
    "parquet": ["export", "--to", "parquet", "-o", "out"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good recording, and what is none."""
    monkeypatch.chdir(tmp_path)
    nsz.write("good.nsz", [SpanRecord(7, 1, "chat", SpanKind.CLIENT, 10, 20, {})], [], {"service.name": "a"})
    Path("empty").mkdir()
    Path("none.nsz").write_bytes(b"")
    Path("json.nsz").write_text('{"a": 1}')
    os.mkfifo("pipe.nsz")
    Path("mixed").mkdir()
    Path("mixed/a.nsz").write_bytes(Path("good.nsz").read_bytes())
    Path("mixed/b.nsz").write_text('{"a": 1}')
    return tmp_path


def neuronscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command."""
    monkeypatch.setattr(sys, "argv", ["neuronscope", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("missing.nsz", 2, "'missing.nsz' does not exist"),
        ("empty", 1, "the directory empty holds no .nsz file"),
        ("none.nsz", 1, "none.nsz is empty"),
        ("json.nsz", 1, "json.nsz is not an .nsz file: it looks like JSON"),
        ("pipe.nsz", 1, "pipe.nsz is not a regular file"),
        ("/dev/null", 1, "/dev/null is not a regular file"),
    ],
)
def test_what_is_no_recording_is_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tool: str,
    path: str,
    code: int,
    words: str,
) -> None:
    """By every tool alike, without a traceback and without an output."""
    found, out, err = neuronscope(monkeypatch, capsys, *TOOLS[tool], path)
    assert found == code
    assert words in out + err
    assert not [name for name in os.listdir() if name.startswith(("out", "."))]


@pytest.mark.parametrize(("tool", "code"), [(tool, int(tool in {"check", "ls"})) for tool in TOOLS])
def test_a_file_of_a_directory_that_is_none_is_told_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str, code: int
) -> None:
    """Copies and exports of the rest are made; whoever asks what is there gets an exit code."""
    found, out, err = neuronscope(monkeypatch, capsys, *TOOLS[tool], "mixed")
    assert found == code
    assert (out + err).count("mixed/b.nsz is not an .nsz file") == 1
    assert "out" in out or "chat" in out or "mixed/a.nsz" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["merge", "good.nsz", "-o", "no/out.nsz"], 1, "no/out.nsz: No such file or directory"),
        (["merge", "good.nsz", "-o", "pipe.nsz", "--force"], 1, "pipe.nsz is not a regular file"),
        (["merge", "good.nsz", "-o", "-"], 2, "nothing is written to the standard output here"),
        (
            ["export", "good.nsz", "--to", "perfetto", "-o", "-"],
            2,
            "nothing is written to the standard output",
        ),
        (["view", "good.nsz", "--html", "-"], 2, "nothing is written to the standard output here"),
        (["diff", "good.nsz", "good.nsz", "--markdown", "-"], 2, "nothing is written to the standard output"),
        (["merge", "good.nsz", "-o", "good.nsz"], 2, "good.nsz exists; --force replaces it"),
        (["view", "good.nsz", "--html", "pipe.nsz"], 1, "pipe.nsz is not a regular file"),
        (["view", "good.nsz", "--html", "no/x.html"], 1, "no/x.html: No such file or directory"),
        (["export", "good.nsz", "--to", "otlp-json", "-o", "pipe.nsz", "--force"], 1, "not a regular file"),
        (["export", "good.nsz", "--to", "csv"], 2, "'csv' is not one of"),
        (["cut", "good.nsz", "-o", "x.nsz", "--from", "5", "--to", "5"], 2, "--to is not after --from"),
        (["cut", "good.nsz", "-o", "x.nsz", "--span", "ff"], 1, "no span is in this part"),
        (["cut", "good.nsz", "-o", "x.nsz", "--span", "zz"], 2, "'zz' is no hexadecimal id"),
        (["cut", "good.nsz", "-o", "x.nsz", "--span", "-1"], 2, "'-1' is no hexadecimal id of 16 digits"),
        (["cut", "good.nsz", "-o", "x.nsz", "--trace", "0x7"], 2, "'0x7' is no hexadecimal id of 32 digits"),
        (["cut", "good.nsz", "-o", "x.nsz", "--span", 17 * "f"], 2, "is no hexadecimal id of 16 digits"),
        (["view", "good.nsz", "--last", "0"], 2, "'0' is no whole number of at least 1"),
        (["view", "good.nsz", "--last", "1.5"], 2, "'1.5' is no whole number of at least 1"),
        (["demo", "--questions", "13"], 2, "'13' is no whole number from 1 to 12"),
        (["view", "good.nsz", "--html", "good.nsz"], 2, "good.nsz is named as a recording is"),
        (["diff", "good.nsz", "good.nsz", "--html", "good.nsz"], 2, "good.nsz is named as a recording is"),
        (["diff", "good.nsz", "good.nsz", "--markdown", "good.nsz"], 2, "named as a recording is"),
        (["baseline", "make", "good.nsz", "-o", "good.nsz"], 2, "good.nsz is named as a recording is"),
        (["view", "good.nsz", "--trace", "xyz"], 2, "'xyz' is no beginning of a hexadecimal id"),
        (["view", "good.nsz", "--trace", "ff"], 1, "no trace begins with ff"),
        (["view", "good.nsz", "--trace", "ff", "--format", "json"], 1, "no trace begins with ff"),
        (["view", "good.nsz", "--trace", "ff", "--html", "x.html"], 1, "no trace begins with ff"),
    ],
)
def test_wrong_use_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    """What came and what was expected; nothing is written, and what was there is as it was."""
    before = {name: os.lstat(name).st_mtime_ns for name in os.listdir()}
    found, out, err = neuronscope(monkeypatch, capsys, *arguments)
    assert found == code
    assert words in out + err
    assert len((out + err).strip().splitlines()) == 1
    assert {name: os.lstat(name).st_mtime_ns for name in os.listdir()} == before


SECONDS = {
    "doctor": ["doctor", "openai", "--no-exports", "--wait"],
    "export": ["export", "good.nsz", "--to", "otlp", "--otlp-endpoint", "http://127.0.0.1:9", "--timeout"],
}


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e99", "86401", "soon", ""])
@pytest.mark.parametrize("command", SECONDS)
def test_seconds_that_nobody_can_wait_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, number: str
) -> None:
    """Before anything is done."""
    found, out, err = neuronscope(monkeypatch, capsys, *SECONDS[command], number)
    assert (found, out) == (2, "")
    assert f"{number!r} is not a number of seconds, " in err
    assert len(err.splitlines()) == 1


def test_a_timeout_of_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing could arrive in no time; a look for what has arrived may take none."""
    found, _, err = neuronscope(monkeypatch, capsys, *SECONDS["export"], "0")
    assert found == 2
    assert "'0' is not a number of seconds, more than 0 and at most 86,400" in err


@pytest.mark.parametrize("option", ["--traces-at", "--metrics-at"])
@pytest.mark.parametrize(
    "url",
    ["localhost:9090", "prometheus", "file:///etc", "http://", "http://[::1", "http://a:99999", "http://a b"],
)
def test_an_address_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, url: str
) -> None:
    """Before any library is looked at; most often the scheme was forgotten."""
    found, out, err = neuronscope(monkeypatch, capsys, "doctor", option, url)
    assert (found, out) == (2, "")
    assert f"{url!r} is no address; it must be like http://localhost:9090" in err


@pytest.mark.parametrize("effect", ["nan", "inf", "-1", "-inf", "much"])
def test_a_gate_that_cannot_close_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], effect: str
) -> None:
    """No effect is as large as infinity, and none is negative."""
    found, _, err = neuronscope(
        monkeypatch, capsys, "diff", "good.nsz", "good.nsz", "--fail-on", f"any:{effect}"
    )
    assert found == 2
    assert f"'any:{effect}' is no KIND[:EFFECT]" in err


def test_json_has_only_the_traces_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--trace and --last choose whatever the form."""
    spans = [SpanRecord(trace, 1, f"call {trace}", SpanKind.CLIENT, trace, trace + 1, {}) for trace in (1, 2)]
    nsz.write("two.nsz", spans, [], {})
    for chosen in (["--trace", f"{1:032x}"], ["--last", "1"]):
        code, out, _ = neuronscope(monkeypatch, capsys, "view", "two.nsz", "--format", "json", *chosen)
        assert code == 0
        assert ("call 1" in out, "call 2" in out) == (chosen[0] == "--trace", chosen[0] == "--last")


@pytest.mark.parametrize("each", [[], ["--spans"]])
def test_a_narrow_terminal_shows_every_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], each: list[str]
) -> None:
    """It wraps a line that is longer; the file, its bytes and its times are whole."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = neuronscope(monkeypatch, capsys, "ls", "good.nsz", *each)
    assert code == 0
    for words in ["1970-01-01 00:00:00.000", f"{7:032x}" if each else f"{os.stat('good.nsz').st_size:,}"]:
        assert words in out
    assert each or "good.nsz" in out


@pytest.mark.parametrize("arguments", [["view"], ["view", "--format", "json"]])
def test_every_character_has_a_place_in_every_encoding(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """An output without such characters has others for them in text; JSON is UTF-8, and is whole."""
    nsz.write("far.nsz", [SpanRecord(7, 1, "Zürich → 北京", SpanKind.CLIENT, 10, 20, {})], [], {})
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["neuronscope", *arguments, "far.nsz"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    if "json" in arguments:
        assert json.loads(written.getvalue())["spans"][0]["name"] == "Zürich → 北京"
    else:
        assert b"Z?rich ? ??" in written.getvalue()


@pytest.mark.parametrize("arguments", [["view"], ["view", "--format", "json"], ["ls"], ["check"]])
def test_a_closed_output_is_no_fault(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Whoever starts a process may close it; Python then has None there."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["neuronscope", *arguments, "good.nsz"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert sys.stdout is not None
    sys.stdout.close()


def test_ls_passes_over_spans_whose_times_make_no_sense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hostile file with right checksums: numbers of ten thousand digits, words for times."""
    data = [
        b'{"traceId":"%032x","spanId":"%016x","name":"x","kind":1,"startTimeUnixNano":"%b","endTimeUnixNano":"9"}'
        % (1, number, when)
        for number, when in ((1, b"5"), (2, b"9" * 10_000), (3, b"soon"))
    ]
    encoded = iter(data)

    def encode(_span: SpanRecord, _resource: int) -> bytes:
        return next(encoded)

    with monkeypatch.context() as patched:
        patched.setattr(codec, "encode_span", encode)
        nsz.write("odd.nsz", [SpanRecord(1, 1, "x", SpanKind.CLIENT, 5, 9, {})] * 3, [], {})
    code, out, _ = neuronscope(monkeypatch, capsys, "ls", "odd.nsz", "--format", "json")
    assert code == 0
    assert '"spans": 1,' in out
    code, out, err = neuronscope(monkeypatch, capsys, "cut", "odd.nsz", "-o", "cut.nsz", "--trace", "1")
    assert code == 0, err
    assert len(nsz.read("cut.nsz").spans) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["view", "good.nsz"],
        ["view", "good.nsz", "--format", "json"],
        ["ls", "good.nsz"],
        ["prices"],
        ["diff", "good.nsz", "good.nsz", "--fail-on", "any"],
        ["baseline", "show", "good.nsz"],
        ["dashboards", "build"],
    ],
)
def test_an_output_that_nobody_reads_any_more_is_no_failure(arguments: list[str]) -> None:
    """`neuronscope … | head -1`: the shell's code for it, not the one that says that a gate is shut."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "neuronscope", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "command", [["view", "good.nsz"], ["diff", "good.nsz", "good.nsz"], ["ls", "good.nsz"]]
)
def test_a_terminal_of_the_c_locale_gets_question_marks(command: list[str]) -> None:
    """As a container without a locale has it, and Python told to make nothing of it."""
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "neuronscope", *command],
        env={**{k: v for k, v in os.environ.items() if k not in ("LANG", "PYTHONIOENCODING")}, **plain},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert "ls" in command or b"?" in done.stdout
