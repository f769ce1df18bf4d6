"""The command line's errors: one clear line, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from neuronscope.cli.run import SITE, command_for, observed_environment


def neuronscope(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "neuronscope", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["rum"], 2, "rum"),
        (["view", "--colour"], 2, "--colour"),
        (["run"], 2, "what is to be run"),
        (["run", "no-such-program"], 127, "no-such-program"),
        (["run", "missing.py"], 127, "missing.py"),
        (["run", "--max-overhead-pct", "lots", "python"], 2, "NEURONSCOPE_MAX_OVERHEAD_PCT"),
        (["run", "--prometheus", "here", "python"], 2, "NEURONSCOPE_PROMETHEUS"),
        (["run", "--nsz", "/dev/null/x", "python"], 2, "/dev/null/x"),
        (["run", "--otlp-endpoint", "collector", "python"], 2, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (["export", "."], 2, "perfetto, parquet"),
        (["view", ".", "--trace", "xyz"], 2, "no beginning of a hexadecimal id. Try"),
        (["view", "no-such-file.nsz"], 2, "no-such-file.nsz"),
        (["demo", "--questions", "0"], 2, "0"),
        (["demo", "--out", "/"], 2, "directory"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], code: int, words: str) -> None:
    """What was wrong, on stderr, and nothing else."""
    done = neuronscope(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.startswith("neuronscope: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("group", [(), ("baseline",), ("dashboards",)])
def test_a_group_alone_shows_its_commands(group: tuple[str, ...]) -> None:
    """Help as --help has it, on stderr; nothing was done."""
    done = neuronscope(*group)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")
    assert "Commands:" in done.stderr


def test_a_port_in_use_is_found_before_the_program_starts() -> None:
    """The port, and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = neuronscope("run", "--prometheus", str(port), "python", "-c", "print('ran')")
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.parametrize("content", [b"", b"not a recording at all", b"\x89MCAP0\r\n"])
def test_an_unreadable_file_is_told(tmp_path: Path, content: bytes) -> None:
    """`view` says what the file is not; nothing is raised at the user."""
    path = tmp_path / "x.nsz"
    path.write_bytes(content)
    done = neuronscope("view", str(path))
    assert done.returncode == 1
    assert "x.nsz" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_told_before_the_program_starts(tmp_path: Path) -> None:
    """Which package, and the command that installs it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['grpc'] = None\n")
    with_grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = neuronscope("run", "python", "-c", "print('ran')", PYTHONPATH=str(tmp_path), **with_grpc)
    assert done.returncode == 1
    assert 'pip install "neuronscope[grpc]"' in done.stderr
    assert done.stdout == ""


def test_run_ends_as_the_program_does() -> None:
    """Its exit code, its output, its arguments."""
    done = neuronscope("run", "python", "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--flag", "-m")
    assert done.returncode == 7
    assert done.stdout == "['--flag', '-m']\n"
    assert done.stderr == ""


def test_run_observes_scripts_modules_and_children(tmp_path: Path) -> None:
    """A script, `-m module`, and a Python child process all import through the site hook."""
    code = "import sys\nprint('neuronscope.platform' in sys.modules, __name__)\n"
    (tmp_path / "app.py").write_text(code)
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'app.py'], check=True)\n"
    )
    for arguments in (["app.py"], ["-m", "app"], ["parent.py"], ["python", "-m", "app"]):
        done = subprocess.run(
            [sys.executable, "-m", "neuronscope", "run", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
        )
        assert done.stdout == "True __main__\n", done.stderr


def test_a_sitecustomize_of_the_users_own_still_runs(tmp_path: Path) -> None:
    """Ours is first on the path and runs the hidden one before itself."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 42\n")
    done = neuronscope("run", "python", "-c", "print(mine)", PYTHONPATH=str(tmp_path))
    assert done.stdout == "42\n", done.stderr


def test_the_environment_gets_the_hook_once() -> None:
    """`neuronscope run neuronscope run …` does not pile up."""
    once = observed_environment({"PYTHONPATH": "/a"})
    assert observed_environment(once) == once
    assert once["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/a"]


def test_a_console_script_of_this_environment_comes_first() -> None:
    """`uvicorn` means the one beside this interpreter."""
    assert command_for(None, ["pytest", "-q"])[0].startswith(str(Path(sys.executable).parent))


def test_a_bad_setting_in_a_child_does_not_stop_the_program() -> None:
    """The program runs; one line says why it is not observed."""
    environment = observed_environment({**os.environ, "NEURONSCOPE_QUEUE_MAX_SPANS": "none"})
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "ran\n"
    assert "NEURONSCOPE_QUEUE_MAX_SPANS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_sigterm_flushes_what_was_recorded(tmp_path: Path) -> None:
    """A default SIGTERM kills without atexit; the recording is complete all the same."""
    program = textwrap.dedent(
        """
        import os, signal
        from opentelemetry import trace
        import neuronscope as ns
        with ns.Scope("last words"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    done = neuronscope("run", "--nsz", str(tmp_path), "python", "-c", program)
    assert done.returncode == -15
    shown = neuronscope("view", str(tmp_path), "--format", "json")
    assert [span["name"] for span in json.loads(shown.stdout)["spans"]] == ["last words"]
