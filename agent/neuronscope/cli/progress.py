"""Progress of things that load side by side: live lines on a terminal, plain ones in a log."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn


class Lines:
    """One line for each thing that is loading; a context manager.

    On a terminal the lines are updated in place; elsewhere each change of text is printed once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, str] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("[bold]{task.fields[who]}[/]"),
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[seconds]:.0f} s[/]"),
            console=console,
            disable=not console.is_terminal,
        )

    def update(self, who: str, text: str, seconds: float, *, done: bool = False) -> None:
        """Say what `who` is doing, and for how long."""
        if not self._console.is_terminal:
            if self._told.get(who) != text:
                self._told[who] = text
                self._console.print(f"{who}: {text} ({seconds:.0f} s)", highlight=False)
            return
        task = self._tasks.get(who)
        if task is None:
            task = self._tasks[who] = self._progress.add_task("", total=1, who=who, seconds=0.0)
        self._progress.update(task, description=text, seconds=seconds, completed=int(done))

    def __enter__(self) -> Lines:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
