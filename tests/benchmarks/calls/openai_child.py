"""Runs in a peer's environment: the openai client with and without one instrumentation.

    python -m tests.benchmarks.calls.openai_child PEER content|no_content [--instructions]

PEER is a name in `PEERS`, ``neuronscope``, ``neuronscope:off``, ``neuronscope:foreign`` (beside the service's
own pipeline) or ``sdk-by-hand``.
"""

from __future__ import annotations

import os
import sys

from tests.benchmarks.calls import ours
from tests.benchmarks.calls.openai_client import Sdk, Seam
from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.calls.peers import PEERS, Counter
from tests.benchmarks.calls.side_by_side import OURS, SideBySide, quiet
from tests.benchmarks.measure import Call

CHARACTERS_ENV = "BENCH_PROMPT_CHARACTERS"


def switch_on(name: str, *, content: bool) -> tuple[Counter, Seam]:
    """Switch the instrumentation on; returns what counts its spans, and which function it wraps."""
    if name == "sdk-by-hand":
        from tests.benchmarks.calls import by_hand

        counter = Counter()
        counter.flush = by_hand.set_up(by_hand.CountingSdkExporter(counter)).force_flush
        by_hand.switch_on()
        return counter, "create"
    ours_, _, mode = name.partition(":")
    if ours_ != OURS:
        peer = PEERS[name]
        assert peer.openai is not None
        return peer.openai(content), peer.seam
    counter = ours.switch_on("openai", content, enabled=mode != "off")
    if mode == "foreign":
        from tests.benchmarks.calls import by_hand

        provider = by_hand.set_up(by_hand.CountingSdkExporter(counter))

        def flush() -> None:
            provider.force_flush()
            ours.flush()

        counter.flush = flush
    return counter, "request"


def main() -> None:
    name, content, *mode = sys.argv[1:]
    quiet()
    characters = int(os.environ.get(CHARACTERS_ENV, "2300"))
    sdk = Sdk(characters, chunks=50) if mode else Sdk(characters)
    patches = Patches("openai", "httpx", "httpx2")
    counter, seam = switch_on(name, content=content == "content")
    if name == "ddtrace":
        sdk.client = sdk.new_client()  # it patches clients as they are made

    def call(request: str, hot: bool) -> Call:
        return sdk.call(request, seam if hot else None)

    # As many chats as there are between two whose texts we weigh: fewer would count that one or miss it.
    counted = {"chat": 16, "stream": 1, "embeddings": 4}
    SideBySide(patches, counter, call, counted).run(instructions=bool(mode))


if __name__ == "__main__":
    main()
