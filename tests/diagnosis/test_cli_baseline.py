"""`neuronscope baseline`: from recordings to a file, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

import neuronscope as ns
from neuronscope.cli import cli


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["baseline", *map(str, arguments)])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 250 searches of a real store."""
    folder = tmp_path_factory.mktemp("recording")
    client = QdrantClient(":memory:")
    client.create_collection("docs", vectors_config=VectorParams(size=2, distance=Distance.COSINE))
    client.upsert("docs", points=[PointStruct(id=n, vector=[1.0, n / 9]) for n in range(9)])
    with ns.Platform(nsz=str(folder)):
        ns.instrument("qdrant")
        for n in range(250):
            # Their SimHashes have to differ: vectors all around, in a plane.
            client.query_points("docs", query=[n - 125.5, 60.0 - (n * 37) % 120], limit=3)
    return folder


def test_make_and_show(recording: Path, tmp_path: Path) -> None:
    """The table names the series; JSON has the same facts."""
    made = run("make", recording, "-o", tmp_path / "b.json")
    assert "docs" in made.output
    shown = run("show", tmp_path / "b.json", "--format", "json")
    assert shown.exit_code == 0
    document = json.loads(shown.output)
    (series,) = document["series"]
    assert (series["store"], series["collection"], series["metric"], series["k"]) == (
        "qdrant",
        "docs",
        "cosine",
        3,
    )
    assert series["queries"] == 250
    assert series["empty"] == 0
    assert made.exit_code == (0 if series["usable"] else 1)
    direct = json.loads(run("show", recording, "--format", "json").output)
    assert direct["series"] == document["series"]


def test_too_small_a_recording_is_told(recording: Path, tmp_path: Path) -> None:
    """Exit code 1, and how many queries are needed; fingerprints of another baseline are kept."""
    with ns.Scope("nothing") as scope:
        pass
    scope.save(tmp_path / "day.nsz")
    ns.Baseline(source="before").save(tmp_path / "old.json")
    made = run("make", tmp_path / "day.nsz", "-o", tmp_path / "b.json", "--keep", tmp_path / "old.json")
    assert made.exit_code == 1
    assert "no search of a vector store" in made.output
    assert (tmp_path / "b.json").exists()


def test_what_is_no_baseline_is_told(tmp_path: Path) -> None:
    """By its message; see `neuronscope.cli.main` for exit codes."""
    (tmp_path / "x.json").write_text("{}")
    result = run("show", tmp_path / "x.json")
    assert isinstance(result.exception, ns.BaselineError)
