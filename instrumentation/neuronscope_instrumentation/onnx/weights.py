"""The fingerprint of an ONNX model: operations, attributes, connections and weights; names do not count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from neuronscope import fingerprints
from neuronscope.exceptions import ModelFileError
from neuronscope_instrumentation.onnx.graph import Loaded, library

_BLOCK: Final = 1 << 20


def fingerprint(loaded: Loaded) -> str:
    """Name a model; costs one read of all its weights, block by block where they are in files of their own.

    Raises:
        ModelFileError: a file of external data is missing or too short.
    """
    model = loaded.model
    reader = _Reader(loaded.folder)
    opsets = {opset.domain or "ai.onnx": int(opset.version) for opset in model.opset_import}
    functions = [[f.domain, f.name, reader.nodes(f.node, _Values())] for f in model.functions]
    return fingerprints.fingerprint(
        {"opsets": opsets, "functions": functions, "graph": reader.graph(model.graph, _Values())}
    )


class _Values:
    """Names of values, replaced by the order in which they appear."""

    def __init__(self, outer: _Values | None = None) -> None:
        self._places: dict[str, int] = dict(outer._places) if outer is not None else {}

    def __call__(self, name: str) -> int:
        return self._places.setdefault(name, len(self._places)) if name else -1


class _Reader:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def graph(self, graph: Any, values: _Values) -> list[object]:
        held = {tensor.name for tensor in graph.initializer}
        inputs = [
            [values(value.name), value.type.SerializeToString(deterministic=True)]
            for value in graph.input
            if value.name not in held
        ]
        nodes = self.nodes(graph.node, values)
        # By first use: in which order a file lists its weights does not matter.
        weights = {f"{values(t.name):09}": self.tensor(t) for t in graph.initializer}
        sparse = {
            f"{values(t.values.name):09}": [list(t.dims), self.tensor(t.values), self.tensor(t.indices)]
            for t in graph.sparse_initializer
        }
        return [inputs, nodes, weights, sparse, [values(value.name) for value in graph.output]]

    def nodes(self, nodes: Any, values: _Values) -> list[object]:
        return [
            [
                node.domain,
                node.op_type,
                [values(name) for name in node.input],
                {attribute.name: self.attribute(attribute, values) for attribute in node.attribute},
                [values(name) for name in node.output],
            ]
            for node in nodes
        ]

    def attribute(self, attribute: Any, values: _Values) -> object:
        if attribute.HasField("t"):
            return self.tensor(attribute.t)
        if attribute.HasField("g"):
            return self.graph(attribute.g, _Values(values))
        if attribute.graphs or attribute.tensors:
            bodies = [self.graph(body, _Values(values)) for body in attribute.graphs]
            return [bodies, [self.tensor(tensor) for tensor in attribute.tensors]]
        plain = type(attribute)()
        plain.CopyFrom(attribute)
        plain.doc_string = ""
        return plain.SerializeToString(deterministic=True)

    def tensor(self, tensor: Any) -> list[object]:
        """Type, shape and content, however the content is stored."""
        head: list[object] = [int(tensor.data_type), [int(size) for size in tensor.dims]]
        if tensor.external_data:
            return [*head, *self._external(tensor)]
        if tensor.raw_data:
            return [*head, hashlib.sha256(tensor.raw_data).digest()]
        array = library().numpy_helper.to_array(tensor)
        content = [str(each) for each in array.ravel()] if array.dtype.hasobject else array.tobytes()
        if isinstance(content, bytes):
            return [*head, hashlib.sha256(content).digest()]
        return [*head, content]

    def _external(self, tensor: Any) -> Iterator[object]:
        """The content's digest; its place where it is not known in which folder its file is."""
        told = {entry.key: entry.value for entry in tensor.external_data}
        location, offset = told.get("location", ""), int(told.get("offset", 0))
        length = int(told["length"]) if "length" in told else None
        if self._folder is None:
            yield from ("external", location, offset, length)
            return
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise ModelFileError(f"external data of {tensor.name!r} lies outside of the model's folder")
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                left = length
                while left is None or left > 0:
                    block = file.read(_BLOCK if left is None else min(left, _BLOCK))
                    if not block:
                        break
                    digest.update(block)
                    left = None if left is None else left - len(block)
        except OSError as error:
            raise ModelFileError(f"external data of {tensor.name!r} cannot be read: {error}") from error
        if left:
            raise ModelFileError(f"external data of {tensor.name!r} ends {left} bytes early in {path.name}")
        yield digest.digest()
