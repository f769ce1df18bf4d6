"""Grafana's own types, from npm, accept the dashboards: every key, and the options of every panel.

There is no Grafana server to be had here; these are the types that its front end is compiled with.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fetched import from_npm
from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.boards import BOARDS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PACKAGES = ("@grafana/schema@13.2.0", "typescript@5.9.3")  # neither depends on anything
OPTIONS = {
    "bargauge": "BarGauge",
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "table": "Table",
    "text": "Text",
    "timeseries": "TimeSeries",
}
# An enum of strings takes no plain string in TypeScript: its values do, and that is what JSON has.
HEAD = """
import type { Dashboard } from "@grafana/schema";
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Loose<T> = T extends string ? `${T}` : T extends (infer U)[] ? Loose<U>[]
  : T extends object ? { [K in keyof T]?: Loose<T[K]> } : T;
"""
CONFIG = {
    "noEmit": True,
    "strict": True,
    "skipLibCheck": True,
    "module": "nodenext",
    "moduleResolution": "nodenext",
    "target": "es2022",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Grafana's types and the compiler."""
    folder = tmp_path_factory.mktemp("grafana")
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": CONFIG}), encoding="utf-8")
    from_npm(folder, *PACKAGES)
    return folder


def compiled(folder: Path, lines: list[str]) -> list[str]:
    """The compiler's errors."""
    (folder / "check.ts").write_text("\n".join([HEAD, *lines]), encoding="utf-8")
    done = subprocess.run(
        ["npx", "--no-install", "tsc", "-p", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr
    return [line for line in done.stdout.splitlines() if "error TS" in line]


def constants(name: str, board: Any) -> Iterator[str]:
    """A dashboard, and each panel's options and custom fields, as typed constants."""
    yield f"export const {name}: Plain<Dashboard> = {json.dumps(board)};"
    for panel in board["panels"]:
        kind = OPTIONS.get(panel["type"])
        if kind is None:
            assert panel["type"] == "row"
            continue
        at = f"{name}{panel['id']}"
        yield f"export const o{at}: Loose<{kind}.Options> = {json.dumps(panel['options'])};"
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
        if custom and kind != "Table":  # a table's are those of its cells
            yield f"export const c{at}: Loose<{kind}.FieldConfig> = {json.dumps(custom)};"


def imports() -> list[str]:
    path = "@grafana/schema/dist/esm/raw/composable/{}/panelcfg/x/{}PanelCfg_types.gen"
    return [
        f'import type * as {kind} from "{path.format(name.replace("-", ""), kind)}";'
        for name, kind in OPTIONS.items()
    ]


def test_grafana_types_accept_every_dashboard_and_panel(folder: Path) -> None:
    """No unknown key, no wrong type, and none of either in a panel's options."""
    boards = {name: json.loads(build(limits.default())) for name, build in BOARDS.items()}
    lines = [line for name, board in boards.items() for line in constants(name, board)]
    assert compiled(folder, [*imports(), *lines]) == []


def test_the_check_sees_a_wrong_key_and_a_wrong_type(folder: Path) -> None:
    """Else it would show nothing."""
    board = json.loads(BOARDS["agent"](limits.default()))
    board["panels"][1]["gridPos"]["w"] = "4"
    wrong_key = json.loads(BOARDS["agent"](limits.default()))
    wrong_key["panelz"] = []
    option = 'export const o: Loose<Stat.Options> = { graphMode: "areas" };'
    lines = [*imports(), *constants("type", board), *constants("key", wrong_key), option]
    found = compiled(folder, lines)
    assert len(found) == 3, found
