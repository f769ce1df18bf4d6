"""Packages that tests get from a registry, asked for once more where the network fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

PAUSES_S: Final = (1, 10)


def from_npm(folder: Path, *packages: str) -> None:
    """Packages of Node.js, in `folder`; none of their scripts runs."""
    assert shutil.which("npm"), "this test needs Node.js and npm"
    quietly = ("--no-audit", "--no-fund", "--ignore-scripts", "--fetch-timeout=20000")
    _fetch(["npm", "install", *quietly, *packages], folder)


def from_pypi(folder: Path, *requirements: str) -> None:
    """Packages of Python, in `folder`, without what they depend on."""
    quietly = ("--quiet", "--no-deps", "--no-compile", "--upgrade", "--target", str(folder))
    _fetch([sys.executable, "-m", "pip", "install", *quietly, *requirements], None)


def _fetch(command: list[str], folder: Path | None) -> None:
    for pause_s in (*PAUSES_S, None):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert pause_s is not None, done.stdout[-2000:] + done.stderr[-2000:]
        time.sleep(pause_s)
