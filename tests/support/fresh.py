"""Programs whose peak memory is their own."""

from __future__ import annotations

import sys
from typing import Final

# Linux gives a process that starts another program the peak (ru_maxrss) it had before, and a child of
# `subprocess` has shared the whole memory of the test process until then.  The shell stays and forks
# again, which starts at zero.
FRESH_PYTHON: Final = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable]
