"""A disk that refuses one call after the other: nothing raises, and every span is accounted for."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuronscope.signals.records import Batch
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import exporter as exporter_module
from recorders import Host, span

BATCHES, EACH = 12, 10
REFUSED = 3  # calls in a row
CALLS = ("writev", "short", "open", "fdatasync", "rename", "ftruncate")


def refusing(monkeypatch: pytest.MonkeyPatch, folder: Path, call: str, first: int) -> list[int]:
    """Have the system refuse some calls from the `first` on; counts them all."""
    counts = [0]

    def refuses() -> bool:
        counts[0] += 1
        return first < counts[0] <= first + REFUSED

    def wrapped(real: Callable[..., Any], code: int) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            mine = not isinstance(arguments[0], str | Path) or str(arguments[0]).startswith(str(folder))
            if mine and refuses():
                raise OSError(code, os.strerror(code))
            return real(*arguments, **more)

        return called

    real_writev = os.writev

    def short(descriptor: int, buffers: Any) -> int:
        if not refuses():
            return real_writev(descriptor, buffers)
        return os.write(descriptor, b"".join(map(bytes, buffers))[:7])

    if call in {"short", "ftruncate"}:
        monkeypatch.setattr(os, "writev", short)
    if call == "ftruncate":  # what was half written cannot even be cut off

        def refused(*_: object) -> None:
            raise OSError(errno.EIO, "refused")

        monkeypatch.setattr(os, "ftruncate", refused)
    elif call != "short":
        code = {"writev": errno.ENOSPC, "open": errno.EROFS, "fdatasync": errno.EIO, "rename": errno.EROFS}[
            call
        ]
        monkeypatch.setattr(os, call, wrapped(getattr(os, call), code))
    return counts


@pytest.mark.parametrize("first", range(0, 40, 5))
@pytest.mark.parametrize("call", CALLS)
def test_whatever_the_disk_refuses_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, first: int
) -> None:
    """In the middle of a segment, at its end, at the beginning of the next; then the disk works again."""
    host = Host(tmp_path, nsz_segment_bytes=64 << 10, nsz_sync_s=0.05)
    exporter = host.make()
    noise = random.Random(first)
    with monkeypatch.context() as patched:
        patched.setattr(exporter_module, "RETRY_NS", 0)  # else a second is lost after a beginning that fails
        refusing(patched, tmp_path, call, first)
        for batch in range(BATCHES):
            texts = [noise.randbytes(3000).hex() for _ in range(EACH)]
            spans = [span(1 + batch * EACH + n, attributes={"text": text}) for n, text in enumerate(texts)]
            exporter.export(Batch({}, spans))
        exporter.shutdown(60.0)
    lost = sum(n for (item, _), n in host.lost.items() if item == "span")
    found = [item.span_id for path in nsz.recordings(tmp_path) for item in nsz.NszFile(path).spans]
    assert len(found) == len(set(found))
    assert len(found) + lost == BATCHES * EACH
    assert host.exported["span"] == len(found)
    assert lost <= REFUSED * EACH
    if call != "ftruncate":
        assert not nsz.read(tmp_path).damage
