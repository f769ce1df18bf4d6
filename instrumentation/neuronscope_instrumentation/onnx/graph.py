"""Reading an ONNX graph: its nodes with their shapes, by shape inference alone."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from neuronscope.exceptions import MissingDependencyError, ModelFileError
from neuronscope.signals.tensors import DTYPE_NAMES, LayerSpec
from neuronscope_instrumentation.onnx.flops import Tensor, operations

# Values that shape inference may need, such as the target of a Reshape.  Larger ones are weights: they
# are left out, so that models beyond protobuf's limit of 2 GB can be inferred.
_KEPT_VALUES: Final = 1024
_MAX_DEPTH: Final = 50  # of graphs within graphs


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and where its external data is.

    Attributes:
        folder: of the model's file; None for one given as a message.
    """

    model: Any
    folder: Path | None


def library() -> Any:
    """The onnx package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise MissingDependencyError("Reading an ONNX graph", "onnx", extra="onnx") from None


def load(model: Any) -> Loaded:
    """Read a file without its external data; a message is taken as it is.

    Raises:
        ModelFileError: this is no ONNX model.
    """
    path: Path | None = None
    if isinstance(model, str | os.PathLike):
        path = Path(os.fsdecode(cast("str | os.PathLike[str]", model)))
        model = _read(path)
    if not getattr(model, "ir_version", 0) or not model.HasField("graph") or not model.graph.node:
        raise ModelFileError(f"{path or 'this message'} holds no ONNX model: it has no version or no graph")
    return Loaded(model, path.parent if path is not None else None)


def _read(path: Path) -> Any:
    onnx = library()
    errors: Any = importlib.import_module("google.protobuf.message")
    try:
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (errors.DecodeError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} holds no ONNX model: {error}") from error


# --- layers ---------------------------------------------------------------------------------------------
def layers(loaded: Loaded) -> list[LayerSpec]:
    """The nodes that compute; constants are parameters of the nodes that use them first."""
    graph = inferred(loaded.model).graph
    return list(_layers(graph, "", {}, set(), 0))


def _layers(
    graph: Any, prefix: str, outer: dict[str, Tensor], counted: set[str], depth: int
) -> Iterator[LayerSpec]:
    known = outer | _tensors(graph)
    weights = _weights(graph)
    taken: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        if node.op_type == "Constant":
            continue
        name = prefix + path_of(node, place)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        yield _layer(node, name, known, weights, counted)
        if depth < _MAX_DEPTH:
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    if body.node:
                        yield from _layers(body, f"{name}.{attribute.name}.", known, counted, depth + 1)


def _layer(
    node: Any, name: str, known: dict[str, Tensor], weights: dict[str, int], counted: set[str]
) -> LayerSpec:
    inputs = [known.get(each, Tensor("", None)) for each in node.input if each]
    outputs = [known.get(each, Tensor("", None)) for each in node.output if each]
    own = [each for each in dict.fromkeys(node.input) if each in weights and each not in counted]
    counted.update(own)
    return LayerSpec(
        id=name,
        name=node.op_type,
        shape=outputs[0].shape if outputs else None,
        parameters=sum(weights[each] for each in own),
        signature=f"{', '.join(map(str, inputs))} -> {', '.join(map(str, outputs))}",
        flops=operations(node, inputs, outputs),
    )


def path_of(node: Any, place: int) -> str:
    """A node's name with dots for slashes; of a nameless node its kind and place."""
    return str(node.name).strip("/").replace("/", ".") or f"{node.op_type}_{place}"


def _tensors(graph: Any) -> dict[str, Tensor]:
    """What is known of the graph's values: inputs, outputs, what was inferred, and initializers."""
    found: dict[str, Tensor] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            kind = value.type.tensor_type
            shape = tuple([_size(size) for size in kind.shape.dim]) if kind.HasField("shape") else None
            found[value.name] = Tensor(dtype_name(kind.elem_type), shape)
    for tensor in graph.initializer:
        found[tensor.name] = Tensor(dtype_name(tensor.data_type), tuple(tensor.dims))
    for tensor in graph.sparse_initializer:
        found[tensor.values.name] = Tensor(dtype_name(tensor.values.data_type), tuple(tensor.dims))
    for name, tensor in constants(graph):
        found[name] = Tensor(dtype_name(tensor.data_type), tuple(tensor.dims))
    return found


def _size(size: Any) -> int:
    return int(size.dim_value) if size.HasField("dim_value") and size.dim_value >= 0 else -1


def _weights(graph: Any) -> dict[str, int]:
    """Numbers in the graph that are parameters: initializers and constants of floating point or packed.

    Integers of up to eight bits are quantised weights; others are shapes and indices.
    """
    whole = {tensor.name: tensor for tensor in graph.initializer} | dict(constants(graph))
    sizes = {
        name: math.prod(tensor.dims)
        for name, tensor in whole.items()
        if is_parameter(dtype_name(tensor.data_type))
    }
    sparse = {each.values.name: math.prod(each.values.dims) for each in graph.sparse_initializer}
    return sizes | sparse


def is_parameter(dtype: str) -> bool:
    """May a stored tensor of this type be a weight?"""
    return dtype.startswith(("F", "BF", "C", "INT4", "UINT4", "INT2", "UINT2")) or dtype in {"I8", "U8"}


def constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of `Constant` nodes, by their names."""
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield str(node.output[0]), attribute.t


def dtype_name(element: int) -> str:
    """An element type under its name in safetensors; ``""`` if it is unknown."""
    onnx = library()
    if not element:
        return ""
    label = str(onnx.TensorProto.DataType.Name(element)).lower()
    plain = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn",
             "float8e5m2": "float8_e5m2"}.get(label, label)  # fmt: skip
    return DTYPE_NAMES.get(plain, label.upper())


# --- shape inference ------------------------------------------------------------------------------------
def inferred(model: Any) -> Any:
    """The model with all shapes that can be inferred, and without the values of its weights."""
    onnx = library()
    bare = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = model.graph.name
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(bare.graph, part).extend(getattr(model.graph, part))
    listed = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _KEPT_VALUES and not tensor.external_data:
            bare.graph.initializer.add().CopyFrom(tensor)
        else:
            bare.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            if tensor.name not in listed:
                # Inference reads the shape of an input; of an initializer without values it would complain.
                bare.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                )
    try:
        shaped = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelFileError(f"shapes of this ONNX model cannot be inferred: {error}") from error
    return shaped
