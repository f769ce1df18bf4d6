"""Starts the demo's two programs, asks them questions, and leaves nothing running.

::

    with DemoProcesses(work_dir, model_dir, command_prefix=["neuronscope", "run"]) as demo:
        for answer in demo.ask_all(load_questions()):
            print(answer.text)
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast, final

from neuronscope.demo.models import SMOLLM2
from neuronscope.exceptions import NeuronscopeError

MODEL_SERVER = "model-server"
RAG_SERVICE = "rag-service"

Stage = Literal["starting", "loading", "ready", "stopping"]

_FOLDER = Path(__file__).parent
_GRACE_SECONDS = 5.0
_READY_TIMEOUT_SECONDS = 180.0
_ANSWER_TIMEOUT_SECONDS = 150.0
_POLL_SECONDS = 0.25
_QUOTED_LINES = 15


class DemoError(NeuronscopeError, RuntimeError):
    """One of the demo's programs failed; the message quotes the end of its log.

    Attributes:
        program: the name of the program that failed.
        log: the file with everything that it wrote.
    """

    def __init__(self, program: str, what_happened: str, log: Path) -> None:
        tail = "\n".join(f"    {line}" for line in _last_lines(log))
        super().__init__(f"the demo's {program} {what_happened}. Its log ({log}) ends with:\n{tail}")
        self.program = program
        self.log = log


@dataclass(frozen=True, slots=True)
class Progress:
    """What a program is doing, for a progress line.

    Attributes:
        program: `rag-service` or `model-server`.
        stage: where it stands; `loading` is repeated about four times a second.
        detail: the same in words.
        seconds: since the program was started.
    """

    program: str
    stage: Stage
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question that the corpus answers, and the document that does."""

    question: str
    document: str


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """A document that the service gave to the model."""

    id: str
    title: str
    score: float


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """What the service answered, and after how many seconds."""

    question: str
    text: str
    sources: tuple[AnswerSource, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Program:
    """How to start a program and how to see that it is ready."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    health_path: str
    loading: str


def load_questions() -> list[DemoQuestion]:
    """Read the questions that ship with the corpus."""
    entries = json.loads((_FOLDER / "corpus" / "questions.json").read_text(encoding="utf-8"))
    return [DemoQuestion(entry["question"], entry["document"]) for entry in entries]


@final
class DemoProcesses:
    """The model server and the service as child processes; a context manager.

    Entering starts both and returns when both are ready. Leaving, in whatever way, stops
    them and all that they started: SIGTERM, then SIGKILL after five seconds. The same
    happens when this process itself is killed. All traffic stays on the loopback interface.

    Not for use by several threads at once.

    Args:
        work_dir: gets the programs' logs and is their working directory; made if missing.
        model_dir: what `prepare_smollm2` returned.
        command_prefix: put before each program's command, which begins with the Python
            interpreter; empty to run them as they are.
        environment: added to the environment of both programs.
        program_environment: added to one program's, by its name.
        on_progress: told what is going on.
    """

    def __init__(
        self,
        work_dir: Path,
        model_dir: Path,
        *,
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program_environment: Mapping[str, Mapping[str, str]] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.work_dir = work_dir.absolute()
        self.model_port, self.service_port = free_ports()
        self._model_dir = model_dir.absolute()
        self._prefix = tuple(command_prefix)
        self._environment = dict(environment or {})
        self._program_environment = dict(program_environment or {})
        self._on_progress = on_progress or _silent
        self._running: dict[str, _Running] = {}

    @property
    def service_url(self) -> str:
        """Where the service answers: `POST /ask` and `GET /healthz`."""
        return f"http://127.0.0.1:{self.service_port}"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by program, while they run: each is the guard whose child the program is."""
        return {name: running.process.pid for name, running in self._running.items()}

    def log_path(self, program: str) -> Path:
        """Say where a program's output goes, as `rag-service` or `model-server`."""
        return self.work_dir / f"{program}.log"

    def __enter__(self) -> DemoProcesses:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self._link_model()
        try:
            for program in (self._model_server(), self._service()):
                self._start(program)
            self._wait_until_ready()
        except BaseException:  # Ctrl-C while loading, too, must leave nothing behind
            self._stop()
            raise
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def ask_all(self, questions: Iterable[DemoQuestion]) -> Iterator[DemoAnswer]:
        """Ask one question after the other, yielding each answer as it comes."""
        for question in questions:
            yield self.ask(question.question)

    def ask(self, question: str) -> DemoAnswer:
        """Ask the service one question.

        Raises:
            DemoError: the service, or the model behind it, failed or is gone.
        """
        started = time.monotonic()
        try:
            status, body = _post_json(self.service_port, "/ask", {"question": question})
        except (OSError, http.client.HTTPException) as error:
            self._raise_if_ended()
            raise DemoError(RAG_SERVICE, f"did not answer ({error})", self.log_path(RAG_SERVICE)) from error
        if status != 200:
            self._raise_if_ended()
            # 502 is how the service says that the model behind it failed.
            culprit = MODEL_SERVER if status == 502 else RAG_SERVICE
            raise DemoError(culprit, f"failed on a question (status {status})", self.log_path(culprit))
        reply = cast("dict[str, Any]", json.loads(body))
        return DemoAnswer(
            question=question,
            text=reply["answer"],
            sources=tuple(AnswerSource(**source) for source in reply["sources"]),
            seconds=time.monotonic() - started,
        )

    def _model_server(self) -> _Program:
        # transformers' own program, named by its module: a console script's place varies.
        command = (sys.executable, "-m", "transformers.cli.transformers", "serve", SMOLLM2)
        options = ("--host", "127.0.0.1", "--port", str(self.model_port), "--device", "cpu")
        return _Program(
            name=MODEL_SERVER,
            command=command + options,
            env={},
            port=self.model_port,
            health_path="/health",
            loading=f"loading {SMOLLM2} (PyTorch, transformers serve)",
        )

    def _service(self) -> _Program:
        return _Program(
            name=RAG_SERVICE,
            command=(sys.executable, str(_FOLDER / "service.py")),
            env={
                "RAG_LLM_BASE_URL": f"http://127.0.0.1:{self.model_port}/v1",
                "RAG_LLM_MODEL": SMOLLM2,
                "RAG_PORT": str(self.service_port),
            },
            port=self.service_port,
            health_path="/healthz",
            loading="loading MiniLM and indexing the corpus (Qdrant, in memory)",
        )

    def _link_model(self) -> None:
        # The server names a local model by its path and demands that name in requests. A link in the
        # working directory makes it the model's plain name, and keeps the user's paths out of telemetry.
        link = self.work_dir / SMOLLM2
        if link.is_symlink():
            link.unlink()
        link.symlink_to(self._model_dir, target_is_directory=True)

    def _start(self, program: _Program) -> None:
        env = {
            **os.environ,
            **_COMMON_ENVIRONMENT,
            **_without_proxy(os.environ),
            **self._environment,
            "OTEL_SERVICE_NAME": program.name,
            **program.env,
            **self._program_environment.get(program.name, {}),
        }
        # `-I -S`: whatever the environment makes Python load is meant for the program, not for its guard.
        guard = (sys.executable, "-I", "-S", str(_FOLDER / "_lifeline.py"), str(_GRACE_SECONDS))
        with self.log_path(program.name).open("wb") as log:
            process = subprocess.Popen(
                (*guard, *self._prefix, *program.command),
                cwd=self.work_dir,
                env=env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Away from the terminal's Ctrl-C: this process hears it and stops both in good order.
                start_new_session=True,
            )
        self._running[program.name] = _Running(program, process, time.monotonic())
        self._report(program.name, "starting", f"starting on port {program.port}")

    def _wait_until_ready(self) -> None:
        waiting = list(self._running.values())
        while waiting:
            self._raise_if_ended()
            for running in list(waiting):
                program = running.program
                if _is_healthy(program.port, program.health_path):
                    waiting.remove(running)
                    self._report(program.name, "ready", f"ready on port {program.port}")
                elif time.monotonic() - running.started > _READY_TIMEOUT_SECONDS:
                    raise DemoError(
                        program.name,
                        f"was not ready after {_READY_TIMEOUT_SECONDS:.0f} s",
                        self.log_path(program.name),
                    )
                else:
                    self._report(program.name, "loading", program.loading)
            time.sleep(_POLL_SECONDS)

    def _raise_if_ended(self) -> None:
        for name, running in self._running.items():
            status = running.process.poll()
            if status is not None:
                raise DemoError(name, f"ended unexpectedly, {_describe(status)}", self.log_path(name))

    def _stop(self) -> None:
        # First tell all, then wait: they stop side by side, and a second Ctrl-C cannot leave one untold.
        for running in self._running.values():
            with suppress(OSError):
                cast("Any", running.process.stdin).close()
        for name, running in self._running.items():
            self._report(name, "stopping", "stopping")
            try:
                running.process.wait(_GRACE_SECONDS + 5)
            except subprocess.TimeoutExpired:
                # On Linux its program dies with it: see `_lifeline.py`.
                running.process.send_signal(signal.SIGKILL)
                running.process.wait()
        self._running.clear()

    def _report(self, name: str, stage: Stage, detail: str) -> None:
        seconds = time.monotonic() - self._running[name].started
        self._on_progress(Progress(name, stage, detail, seconds))


@dataclass(frozen=True, slots=True)
class _Running:
    program: _Program
    process: subprocess.Popen[bytes]
    started: float


_COMMON_ENVIRONMENT = {
    # More threads than free cores make a small model several times slower.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Everything is on this machine: no look-ups at a model hub and no question for newer versions.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Logs are quoted when a program dies; they must not be stuck in a buffer then.
    "PYTHONUNBUFFERED": "1",
}


def _without_proxy(env: Mapping[str, str]) -> dict[str, str]:
    # The service calls the model by HTTP, and a proxy would be asked for this machine's own addresses.
    own = env.get("no_proxy") or env.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, ("127.0.0.1", "localhost", own)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def free_ports() -> tuple[int, int]:
    """Two different ports that are free now."""
    # Both are held at once, so that they differ.
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _is_healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _post_json(port: int, path: str, body: object) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_TIMEOUT_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _describe(status: int) -> str:
    # A shell's convention, which `_lifeline.py` follows: 128 and the number of the signal.
    if status > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(status - 128).name}"
    return f"with exit status {status}"


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ["(no log)"]
    # Progress bars overwrite themselves with carriage returns.
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-_QUOTED_LINES:] or ["(empty)"]


def _silent(_progress: Progress) -> None:
    pass
