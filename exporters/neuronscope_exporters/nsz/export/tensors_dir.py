"""Full tensors as `.safetensors` files in a directory, with an index."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LayerRecord
from neuronscope_exporters.nsz import tensors
from neuronscope_exporters.nsz.assembly import tensor_metadata
from neuronscope_exporters.nsz.export import Progress, replacing
from neuronscope_exporters.nsz.reader import NszFile
from neuronscope_exporters.nsz.writer import ignore


def to_safetensors(files: Sequence[NszFile], out: str | os.PathLike[str], progress: Progress = ignore) -> int:
    """Write each full tensor as one document, and `index.json` with what each is; how many there were.

    File names are numbers with what is harmless of the layer's name.  A damaged tensor is left out, and the
    index says so.
    """
    folder = Path(out)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []
    written = 0
    total, before = sum(file.size for file in files), 0
    for file in files:
        for number, place in enumerate(file.chunks):
            for record, _ in file.records(number, number + 1):
                if isinstance(record, LayerRecord) and record.tensor is not None:
                    entry = _write(folder, record, len(index))
                    written += "file" in entry
                    index.append(entry)
            progress(before + place.offset, total)
        before += file.size
    with replacing(folder / "index.json") as target:
        target.write(msgspec.json.format(msgspec.json.encode(index)) + b"\n")
    progress(total, total)
    return written


def _write(folder: Path, layer: LayerRecord, number: int) -> dict[str, Any]:
    assert layer.tensor is not None
    entry: dict[str, Any] = {
        "model": layer.model,
        "layer": layer.layer_id,
        "role": layer.role,
        "index": layer.index,
        "step": layer.step,
        "time_unix_nano": str(layer.time_unix_ns),
        "span_id": None if layer.span_id is None else f"{layer.span_id:016x}",
        "dtype": layer.tensor.dtype,
        "shape": list(layer.tensor.shape),
    }
    try:
        payload = tensors.payload(layer.tensor)
    except NszError as error:
        return {**entry, "damaged": str(error)}
    harmless = re.sub(r"[^A-Za-z0-9_-]+", "_", layer.layer_id)[:80]
    name = f"{number:06}-{harmless}-{layer.step}.safetensors"
    metadata = tensor_metadata(layer, payload, 0, 1)
    with replacing(folder / name) as target:
        target.write(tensors.document_header(payload.dtype, payload.shape, len(payload.data), metadata))
        target.write(payload.data)
    return {"file": name, **entry}
