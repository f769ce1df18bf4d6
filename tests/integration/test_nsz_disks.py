"""Real disks that are full, read-only or gone, under a whole platform: the service notices nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuronscope_exporters import nsz

pytestmark = pytest.mark.integration

SERVICE = """
import json, logging, os, subprocess, sys, time
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
folder, trouble = sys.argv[1:]
answers = []
def ask(number):
    with ns.Scope("answer"):
        answers.append(number)
platform = ns.Platform(nsz=folder, instrument=(), export_interval_s=0.02, nsz_segment_bytes=65536)
for number in range(300):
    ask(number)
ns.flush(60.0)
if trouble == "read-only":
    # What is open stays so; nothing new can be made, and nothing renamed.
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
elif trouble == "deleted":
    subprocess.run(["rm", "-rf", folder], check=True)
elif trouble == "full":
    with open(os.path.join(folder, "ballast"), "wb") as file:
        try:
            while True:
                file.write(bytes(65536))
                file.flush()
        except OSError:
            pass
for number in range(300, 2000):
    ask(number)
flushed = ns.flush(60.0)
if trouble == "full":
    os.unlink(os.path.join(folder, "ballast"))
    for number in range(2000, 2100):
        ask(number)
lost = {}
platform.flush(60.0)
for family in ENGINE.metrics.collect().families:
    if family.metric is names.DROPPED:
        for point in family.points:
            lost["/".join(value for _, value in point.labels)] = point.value
platform.shutdown()
print(json.dumps({"answers": len(answers), "lost": lost, "flushed": flushed}))
os.system(f"cp -r {folder}/. {folder}.copy 2>/dev/null")
"""


def run(tmp_path: Path, trouble: str) -> dict[str, Any]:
    """Run the service on a file system of 1 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    (tmp_path / "disk.copy").mkdir()
    mount = f'mount -t tmpfs -o size=1m none "{folder}" && ' if trouble != "deleted" else ""
    program = tmp_path / "service.py"
    program.write_text(SERVICE)
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    command.append(f'{mount}exec "{sys.executable}" "{program}" "{folder}" {trouble}')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_disk_that_fills_and_is_freed_again(tmp_path: Path) -> None:
    """What was complete is readable, what did not fit is counted here and in the file, and it goes on."""
    told = run(tmp_path, "full")
    assert told["answers"] == 2100
    lost = int(told["lost"].get("span/disk_full", 0))
    assert lost > 0
    recording = nsz.read(tmp_path / "disk.copy")
    assert not recording.damage
    assert len(recording.spans) + lost == 2100
    noted = [event.attributes for event in recording.events if event.name == "nsz.lost"]
    assert sum(int(str(item["count"])) for item in noted if item["item"] == "span") == lost


def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    """Everything before is there, everything after is counted."""
    told = run(tmp_path, "read-only")
    assert told["answers"] == 2000
    recording = nsz.read(tmp_path / "disk.copy")
    assert not recording.damage
    assert (
        len(recording.spans) + sum(int(n) for key, n in told["lost"].items() if key.startswith("span/"))
        == 2000
    )
    assert len(recording.spans) >= 300


def test_a_directory_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    """The records in it are gone, by somebody's wish; the service records on."""
    told = run(tmp_path, "deleted")
    assert told["answers"] == 2000
    recording = nsz.read(tmp_path / "disk.copy")
    lost = sum(int(n) for key, n in told["lost"].items() if key.startswith("span/"))
    assert len(recording.spans) + lost == 1700
    assert len(recording.spans) > 1000
