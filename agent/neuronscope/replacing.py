"""Files that take their name when they are complete, and leave what was there as it was until then."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacement(path: str | os.PathLike[str]) -> Generator[Path]:
    """Where to write what is called `path` when the block has ended without an error.

    The name yielded is beside it, and nothing has it yet.  A link is replaced, not followed.

    Raises:
        OSError: `path` cannot be written, or is something that no file may take the place of: a directory, a
            device, a pipe.  It is as it was.
    """
    target = Path(path)
    with suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FileExistsError(f"{target} is not a regular file, and is not replaced by one")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        if error.filename == os.fspath(temporary):  # nobody has asked for that one
            error.filename, error.filename2 = os.fspath(target), None
        raise
    finally:
        temporary.unlink(missing_ok=True)
