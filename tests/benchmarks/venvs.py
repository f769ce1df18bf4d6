"""Environments of the peers: one virtual environment each, with pinned versions, made when first needed."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".bench"


class UnavailableError(Exception):
    """A peer or a tool cannot be had here; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A ready virtual environment.

    Attributes:
        python: its interpreter.
        versions: what is installed, by distribution.
    """

    python: Path
    versions: dict[str, str]

    def version(self, distribution: str) -> str:
        """The installed version; empty if there is none."""
        return self.versions.get(distribution.lower(), "")


def environment(name: str, requirements: Sequence[str], alone: Sequence[str] = ()) -> Environment:
    """The environment with exactly these requirements; made now if the cache has none.

    Args:
        alone: further requirements, installed without their dependencies.

    Several processes may ask for the same one at a time: the first makes it, the others wait.

    Raises:
        UnavailableError: it cannot be made; asked again, it is tried again.
    """
    wanted = "\n".join([sys.version, *requirements, *alone])
    folder = CACHE / "venvs" / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:10]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    ready = folder / "versions.txt"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(name, folder, requirements, alone)
    pairs = (line.partition("==") for line in ready.read_text().split())
    return Environment(folder / "bin" / "python", {key.lower(): version for key, _, version in pairs})


def _make(name: str, folder: Path, requirements: Sequence[str], alone: Sequence[str]) -> None:
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    print(f"making the environment of {name}: {' '.join([*requirements, *alone])}", file=sys.stderr)
    _run(name, [sys.executable, "-m", "venv", str(folder)])
    _run(name, [*pip, "install", "--quiet", *requirements])
    if alone:
        _run(name, [*pip, "install", "--quiet", "--no-deps", *alone])
    versions = _run(name, [*pip, "list", "--format=freeze"])
    # Written last: a folder without it was interrupted, and is made again.
    (folder / "versions.txt").write_text(versions)


def _run(name: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (
            done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        ).splitlines()[-1]
        raise UnavailableError(f"{name} cannot be installed: {reason}")
    return done.stdout
