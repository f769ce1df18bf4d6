"""Every code block of the documentation: Python runs, commands are ours, data can be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import promql_parser
import pytest
import yaml
from tests.docs.blocks import ELSEWHERE, Block, all_blocks, blocks_of, pages
from tests.docs.commands import commands, ours, problem
from tests.docs.given import GIVEN

from neuronscope.dashboards import thresholds
from neuronscope.prices import load as load_prices
from programs import ROOT, environment

BLOCKS = all_blocks()
SHELL = {"sh", "bash", "console"}
LANGUAGES = SHELL | {"python", "python smollm2", "yaml", "toml", "json", "sql", "promql", "text", "html", ""}
NOT_RUN_AT_MOST = 4


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_languages_are_known() -> None:
    """A block in a language that no test here reads would be tested by nobody."""
    unknown = [f"{block}: {block.language}" for block in BLOCKS if block.language not in LANGUAGES]
    assert not unknown


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    """The reason is for readers of the page's source."""
    skipped = [block for block in BLOCKS if "not run" in block.marks]
    assert len(skipped) <= NOT_RUN_AT_MOST, [str(block) for block in skipped]
    assert all(len(block.marks["not run"]) > 20 for block in skipped)


def test_pages_tested_elsewhere_are() -> None:
    """The test that is named reads the page."""
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), page


def test_commands_are_those_of_the_command_line() -> None:
    """In blocks and in the text: the command exists, and so do its options."""
    wrong: list[str] = []
    for block in of(*SHELL):
        for command in commands(block.code):
            arguments = ours(command)
            if arguments is not None and (why := problem(arguments)):
                wrong.append(f"{block}: {' '.join(command)}: {why}")
    for page in [*pages(), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for said in re.findall(r"`neuronscope ([^`\n]+)`", text):
            why = None if said.startswith("COMMAND") else problem(said.split())
            if why and "requires an argument" not in why:
                wrong.append(f"{page.relative_to(ROOT)}: neuronscope {said}: {why}")
    assert not wrong, "\n".join(wrong)


def test_scripts_can_be_read_by_bash() -> None:
    """Quotes are closed, loops are ended."""
    for block in of("sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}: {done.stderr}"


def test_extras_and_targets_exist() -> None:
    """`pip install 'neuronscope[x]'` and `make x` are what there is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in pages():
        for named in re.findall(r"neuronscope\[([a-z0-9_,-]+)\]", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(project["optional-dependencies"]), f"{page}: {named}"
    for block in of(*SHELL):
        for command in commands(block.code):
            if command[0] == "make" and len(command) > 1:
                assert command[1] in targets, f"{block}: {' '.join(command)}"


def test_data_can_be_read() -> None:
    """YAML, TOML, JSON and PromQL; files of ours by what reads them."""
    for block in of("yaml", "toml", "json", "promql"):
        try:
            read(block)
        except (ValueError, yaml.YAMLError) as error:
            pytest.fail(f"{block}: {error}")


def read(block: Block) -> None:
    match block.language:
        case "yaml":
            assert list(yaml.safe_load_all(block.code))
        case "json":
            json.loads(block.code)
        case "promql":
            promql_parser.parse(re.sub(r"\$__(rate_)?interval", "1m", block.code))
        case _:
            tomllib.loads(block.code)


@pytest.mark.parametrize("name", ["alerts", "cost"])
def test_files_of_ours_are_taken(name: str, tmp_path: Path) -> None:
    """Thresholds and prices of the pages about them."""
    (page,) = [page for page in pages() if page.name == f"{name}.md"]
    (block,) = [block for block in blocks_of(page) if block.language == "toml"]
    path = tmp_path / "file.toml"
    path.write_text(block.code, encoding="utf-8")
    if name == "alerts":
        assert thresholds.load(path).slo.availability.objective == 0.999
    else:
        assert load_prices(str(path))


RUN = [page for page in pages() if str(page.relative_to(ROOT)) not in ELSEWHERE]


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in one namespace, in the order of the page; files are written; marked commands run."""
    blocks = [
        block for block in blocks_of(page) if block.language in {"python", *SHELL} or "file" in block.marks
    ]
    monkeypatch.chdir(tmp_path)
    if "dashboards/" in page.read_text(encoding="utf-8"):
        shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards")
    (needed,) = {block.marks["given"] for block in blocks if "given" in block.marks} or {""}
    with GIVEN[needed]() as names:
        module = types.ModuleType("page")
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, "page", module)
        for block in blocks:
            if "file" in block.marks:
                path = tmp_path / block.marks["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.code, encoding="utf-8")
            if block.language == "python":
                code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
                if "not run" not in block.marks:
                    exec(code, module.__dict__)
            elif block.language in SHELL and "run" in block.marks:
                shell(block, tmp_path)


def shell(block: Block, folder: Path) -> None:
    script = f'neuronscope() {{ "{sys.executable}" -m neuronscope "$@"; }}\n{block.code}'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{block}:\n{done.stdout}{done.stderr}"
