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
from neuronscope.demo.programs import (
    COMMON_ENVIRONMENT,
    MODEL_SERVER,
    RAG_SERVICE,
    Program,
    free_ports,
    is_healthy,
    model_server,
    rag_service,
    without_proxy,
)
from neuronscope.exceptions import NeuronscopeError

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

    def log_path(self, program: str) -> Path:
        """Say where a program's output goes, as `rag-service` or `model-server`."""
        return self.work_dir / f"{program}.log"

    def __enter__(self) -> DemoProcesses:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self._link_model()
        try:
            for program in (model_server(self.model_port), rag_service(self.service_port, self.model_port)):
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

    def _link_model(self) -> None:
        # The server names a local model by its path and demands that name in requests. A link in the
        # working directory makes it the model's plain name, and keeps the user's paths out of telemetry.
        link = self.work_dir / SMOLLM2
        if link.is_symlink():
            link.unlink()
        link.symlink_to(self._model_dir, target_is_directory=True)

    def _start(self, program: Program) -> None:
        env = {
            **os.environ,
            **COMMON_ENVIRONMENT,
            **without_proxy(os.environ),
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
                if is_healthy(program):
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
    program: Program
    process: subprocess.Popen[bytes]
    started: float


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
