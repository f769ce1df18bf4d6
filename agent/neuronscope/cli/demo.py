"""``neuronscope demo``: a real RAG service and a real model server, observed without a change."""

from __future__ import annotations

import shlex
import signal
import sys
import time
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from neuronscope.artifact import Artifact, load
from neuronscope.cli.paths import Target
from neuronscope.cli.printing import print_json
from neuronscope.cli.progress import Lines
from neuronscope.cli.values import Count
from neuronscope.cli.view import show
from neuronscope.demo.models import check_libraries, default_cache_dir, prepare_minilm, prepare_smollm2
from neuronscope.demo.programs import MODEL_SERVER, RAG_SERVICE, free_ports
from neuronscope.demo.runner import DemoAnswer, DemoProcesses, load_questions
from neuronscope.exporters import registry
from neuronscope.viewer.document import document

PREFIX = (sys.executable, "-m", "neuronscope", "run")
OVERHEAD = "neuronscope_overhead_accounted_ratio"


@click.command()
@click.option("--questions", metavar="N", type=Count(1, 12), default=3, show_default=True, help="1 to 12.")
@click.option("--out", metavar="FILE", type=Target(directory=True), help="Where the merged recording goes.")
@click.option("--keep-running", is_flag=True, help="Leave both programs running until Ctrl-C.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def demo(questions: int, out: Path | None, keep_running: bool, format_: str) -> None:
    """Ask a real RAG service questions and see one trace through both of its processes.

    Set OTEL_EXPORTER_OTLP_ENDPOINT to send the traces to a collector as well.
    """
    check_libraries()
    text = Console(stderr=format_ == "json")
    work = _work_dir()
    target = out if out is not None else work / "demo.nsz"
    _check_out(target)
    with _stop_on_sigterm():
        model = _prepare(text)
        ports: dict[str, int] = dict(zip((MODEL_SERVER, RAG_SERVICE), free_ports(), strict=True))
        with Lines(text) as lines:
            processes = DemoProcesses(
                work,
                model,
                command_prefix=PREFIX,
                environment={"NEURONSCOPE_NSZ": str(work / "nsz")},
                program_environment={
                    name: {"NEURONSCOPE_PROMETHEUS": f"127.0.0.1:{port}"} for name, port in ports.items()
                },
                on_progress=lambda p: lines.update(p.program, p.detail, p.seconds, done=p.stage == "ready"),
            )
            running = processes.__enter__()
        try:
            answers = list(_ask(text, running, questions))
            overhead = {name: _overhead(port) for name, port in ports.items()}
            if keep_running:
                _wait(text, running, ports)
        finally:
            processes.__exit__(*sys.exc_info())
    registry.nsz("merge")([work / "nsz"], target)
    artifact = load(target)
    if format_ == "json":
        _print_json(answers, overhead, target, artifact)
    else:
        _print_text(text, overhead, target, artifact, ports if keep_running else {})


def _work_dir() -> Path:
    """A new directory for this run's logs and segments."""
    work = default_cache_dir() / "demo" / time.strftime("%Y%m%d-%H%M%S")
    while work.exists():
        work = work.with_name(work.name + "x")
    (work / "nsz").mkdir(parents=True, mode=0o700)
    return work


def _check_out(target: Path) -> None:
    """Not after a minute of work."""
    if target.is_dir():
        raise click.UsageError(f"--out names a file to write; {target} is a directory.")
    if not target.absolute().parent.is_dir():
        raise click.UsageError(f"--out: there is no directory {target.absolute().parent}.")


def _prepare(console: Console) -> Path:
    with Lines(console) as lines:
        prepare_minilm()
        model = prepare_smollm2(progress=lambda message, seconds: lines.update("model", message, seconds))
        lines.update("model", "SmolLM2-135M and MiniLM are at hand", 0.0, done=True)
    return model


def _ask(console: Console, running: DemoProcesses, questions: int) -> Iterator[DemoAnswer]:
    for number, question in enumerate(load_questions()[:questions], 1):
        console.print(f"\n[bold]{number}. {escape(question.question)}[/]")
        with console.status("embedding, searching, generating …"):
            answer = running.ask(question.question)
        console.print(f"   {escape(answer.text.strip())}", highlight=False)
        sources = ", ".join(f"{source.title} ({source.score:.2f})" for source in answer.sources)
        console.print(f"   [dim]from: {escape(sources)} · {answer.seconds:.1f} s[/]", highlight=False)
        yield answer


def _overhead(port: int) -> float | None:
    """A process's accounted overhead in per cent, from its own /metrics page; None if it cannot be had."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
    except OSError:
        return None
    values = [float(line.split()[1]) for line in lines if line.startswith(f"{OVERHEAD} ")]
    return 100 * values[0] if values else None


def _wait(console: Console, running: DemoProcesses, ports: dict[str, int]) -> None:
    console.print(f'\nask: curl -s {running.service_url}/ask -d \'{{"question": "…"}}\'', highlight=False)
    for name, port in ports.items():
        console.print(f"metrics of {name}: http://127.0.0.1:{port}/metrics", highlight=False)
    console.print("Ctrl-C stops both.")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        console.print("stopping …")


def _print_text(
    console: Console,
    overhead: dict[str, float | None],
    target: Path,
    artifact: Artifact,
    ports: dict[str, int],
) -> None:
    console.print()
    show(console, artifact, last=1)
    told = ", ".join(f"{name} {_percent(pct)}" for name, pct in overhead.items())
    console.print(f"\noverhead accounted (budget 15 %): {told}", highlight=False)
    console.print(
        f"recorded: {len(artifact.telemetry.spans)} spans, "
        f"{len(artifact.telemetry.layer_snapshots)} layer records",
        highlight=False,
    )
    console.print("\nlook next:", style="bold")
    quoted = shlex.quote(str(target))
    console.print(f"  neuronscope view {quoted} --html trace.html", highlight=False, soft_wrap=True)
    console.print(f"  neuronscope view {quoted} --last 1 --all-layers", highlight=False, soft_wrap=True)
    console.print(
        "  neuronscope demo --keep-running     (then open /metrics and ask with curl)", highlight=False
    )
    console.print("  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 neuronscope demo", highlight=False)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} %"


def _print_json(
    answers: Sequence[DemoAnswer], overhead: dict[str, float | None], target: Path, artifact: Artifact
) -> None:
    result: dict[str, Any] = {
        "answers": [asdict(answer) for answer in answers],
        "overhead_accounted_pct": overhead,
        "recording": str(target),
        **document(artifact, layers=False),
    }
    print_json(result)


@contextmanager
def _stop_on_sigterm() -> Generator[None]:
    """SIGTERM ends the demo as Ctrl-C does: in good order."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
