"""Runs tests that failed once more, in a process of their own, and tells which of them do not fail each time.

``python -m tests.support.again STATUS`` follows a run of pytest that ended with STATUS.  Among thousands of
tests over threads, sockets and processes, one that fails by the machine's load must not be what a change is
refused for, nor may it be passed over in silence: it is named as flaky, which is a defect of the test or of
the product.  A test that fails again fails the run; so do more failures than a machine's load explains, and
every other way in which pytest ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 3
_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")  # pytest's own record, of `--last-failed`


def main(status: int) -> int:
    """The exit status of the whole run: that of the second one, if there is reason for a second."""
    failed = sorted(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\nOnce more, in a process of their own: {', '.join(failed)}\n", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode
    if again == pytest.ExitCode.OK:
        print("\n".join(f"FLAKY {name}: failed, then passed; see its failure above" for name in failed))
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
