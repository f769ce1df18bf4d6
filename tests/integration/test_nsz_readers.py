"""`.nsz` files in other people's readers: @mcap/core, which Foxglove is built on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import mcap.reader
import pytest

from fetched import from_npm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "exporters" / "golden"
PACKAGES = ("@mcap/core@2.2.2", "fzstd@0.1.1")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, beside its packages."""
    folder = tmp_path_factory.mktemp("node")
    from_npm(folder, *PACKAGES)
    return Path(shutil.copy(TESTS / "support" / "read_mcap.mjs", folder))


def node(program: Path, path: Path, *arguments: str) -> dict[str, Any]:
    command = ["node", str(program), str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.nsz")), ids=lambda path: path.stem)
def test_mcap_core_reads_every_golden_file(reader: Path, path: Path) -> None:
    """By the index and as a stream, with all checksums; as many messages as the Python reader finds."""
    finished = "unfinished" not in path.name
    found = node(reader, path, *(["finished"] if finished else []))
    assert found["done"] is finished
    assert found["streamed"]["nsz/span"] == 3
    assert found["streamed"]["nsz/tensor_ref"] == 17
    if finished:
        assert found["indexed"] == found["streamed"]
        with path.open("rb") as file:
            messages = mcap.reader.make_reader(file, validate_crcs=True).iter_messages()
            assert Counter(channel.topic for _, channel, _ in messages) == found["streamed"]
