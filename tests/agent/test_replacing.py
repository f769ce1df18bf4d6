"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuronscope.replacing import replacement


def test_a_file_takes_its_name_when_it_is_complete(tmp_path: Path) -> None:
    """Until then what was there is as it was; a link is replaced, not followed."""
    (tmp_path / "other").write_text("other")
    target = tmp_path / "a"
    target.symlink_to("other")
    with replacement(target) as new:
        new.write_text("new")
        assert target.read_text() == "other"
    assert (target.read_text(), target.is_symlink()) == ("new", False)
    assert (tmp_path / "other").read_text() == "other"
    assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    """And nothing beside it."""
    (tmp_path / "a").write_text("old")

    def write_half() -> None:
        with replacement(tmp_path / "a") as new:
            new.write_text("half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_half()
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_error_names_what_was_asked_for(tmp_path: Path) -> None:
    """Not the temporary file."""
    target = tmp_path / "missing" / "a"
    with pytest.raises(FileNotFoundError) as caught, replacement(target) as new:
        new.write_text("x")
    assert (caught.value.filename, caught.value.filename2) == (str(target), None)


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """A page written to /dev/null as root must not take its place."""
    target = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(target)
    else:
        target.mkdir()
    before = target.lstat()
    with pytest.raises(FileExistsError, match="not a regular file"), replacement(target):
        pytest.fail("nothing may be written")
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
