"""Runs in a peer's environment: an SDK other than openai's with and without one instrumentation.

    python -m tests.benchmarks.calls.others_child PEER LIBRARY

LIBRARY is a name of `Others`.  PEER is a name in `PEERS`, or ``neuronscope``.
"""

from __future__ import annotations

import functools
import sys

from tests.benchmarks.calls import ours
from tests.benchmarks.calls.others_client import Others
from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.calls.peers import PEERS
from tests.benchmarks.calls.side_by_side import OURS, SideBySide, quiet


def main() -> None:
    name, library = sys.argv[1:]
    quiet()
    sdk = Others(library, public=name != OURS)
    patches = Patches(library.replace("_", "."), "httpx", "httpx2")
    switch_on = functools.partial(ours.switch_on, library) if name == OURS else PEERS[name].others[library]
    counter = switch_on(False)
    SideBySide(patches, counter, sdk.call, dict.fromkeys(sdk.names, 1)).run(instructions=False)


if __name__ == "__main__":
    main()
