"""How many operations a node takes, by the shapes of its tensors: a multiplication and an addition are two.

The formulas are those of the operations' definitions in ONNX; what only moves or reinterprets values takes
none.  Sizes known only when the model runs count as 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Tensor:
    """Element type and shape, as far as they are known; -1: a size known only when the model runs."""

    dtype: str
    shape: tuple[int, ...] | None

    @property
    def size(self) -> int | None:
        """Number of elements, None where not even the rank is known."""
        return None if self.shape is None else math.prod(abs(each) for each in self.shape)

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype or "?"
        return f"{self.dtype or '?'}[{','.join(map(str, self.shape))}]"


_MOVING: Final = frozenset(
    {
        "Cast", "CastLike", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten",
        "Gather", "GatherElements", "GatherND", "Identity", "OneHot", "Pad", "Reshape", "ScatterElements",
        "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile",
        "Transpose", "Trilu", "Unsqueeze", "If", "Loop", "Scan", "Dropout",
    }
)  # fmt: skip
_PER_OUTPUT: Final = {
    **dict.fromkeys(
        (
            "Abs", "Add", "And", "Ceil", "Clip", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater",
            "GreaterOrEqual", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg",
            "Not", "Or", "PRelu", "Pow", "Range", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
            "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor", "IsNaN", "IsInf",
        ),
        1,
    ),
    "DequantizeLinear": 2, "QuantizeLinear": 2, "HardSigmoid": 3, "HardSwish": 4, "Elu": 3, "Selu": 3,
    "Softplus": 3, "Gelu": 5, "Swish": 5, "Softmax": 5, "LogSoftmax": 6, "BatchNormalization": 4,
    "LayerNormalization": 8, "InstanceNormalization": 8, "GroupNormalization": 8, "RMSNormalization": 5,
    "RotaryEmbedding": 3,
}  # fmt: skip
_GATES: Final = {"RNN": 1, "GRU": 3, "LSTM": 4}


def operations(node: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int | None:
    """Operations of one run of a node; None where its kind or the shapes it takes are not known."""
    if not outputs or node.domain not in {"", "ai.onnx"}:
        return None
    kind, out = str(node.op_type), outputs[0].size
    if kind in _MOVING:
        return 0
    if out is None:
        return None
    if kind in _PER_OUTPUT:
        return _PER_OUTPUT[kind] * out
    if kind.startswith(("Reduce", "ArgM", "TopK", "CumSum")):
        return inputs[0].size if inputs else None
    return _products(node, kind, inputs, outputs, out)


def _products(
    node: Any, kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], out: int
) -> int | None:
    shapes = [tensor.shape for tensor in inputs]
    first = shapes[0] if shapes else None
    second = shapes[1] if len(shapes) > 1 else None
    match kind:
        case "MatMul" | "MatMulInteger" | "QLinearMatMul" if first:
            return 2 * out * abs(first[-1])
        case "Gemm" if first:
            return 2 * out * abs(first[0 if _integer(node, "transA") else -1]) + (
                out if len(shapes) > 2 else 0
            )
        case "Conv" | "ConvInteger" if second:
            # A filter's second size is the number of channels of its group.
            return 2 * out * math.prod(map(abs, second[1:])) + (out if len(shapes) > 2 else 0)
        case "ConvTranspose" if first is not None and second:
            taken = math.prod(map(abs, first))
            return 2 * taken * math.prod(map(abs, second[1:])) + (out if len(shapes) > 2 else 0)
        case "AveragePool" | "MaxPool" | "LpPool":
            return out * math.prod(_integers(node, "kernel_shape"))
        case "GlobalAveragePool" | "GlobalMaxPool":
            return inputs[0].size
        case "RNN" | "GRU" | "LSTM" if first and second:
            # Weights are (directions, gates x hidden, inputs), sequences (steps, batch, inputs).
            hidden = abs(second[1]) // _GATES[kind]
            steps = abs(first[0]) * abs(first[1]) * abs(second[0])
            return 2 * steps * _GATES[kind] * hidden * (abs(second[2]) + hidden)
        case "Einsum" if first is not None:
            return _einsum(node, shapes)
        case "Attention" if first and second:
            return _attention(node, inputs, outputs)
        case _:
            return None


def _einsum(node: Any, shapes: Sequence[tuple[int, ...] | None]) -> int | None:
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if "." in equation or len(terms) != len(shapes):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(term) != len(shape):
            return None
        sizes.update(zip(term, map(abs, shape), strict=True))
    return max(1, len(terms)) * math.prod(sizes.values())


def _attention(node: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int | None:
    """Scores and mixture, without the softmax between them."""
    query, key, output = inputs[0].shape, inputs[1].shape, outputs[0].size
    if query is None or key is None or output is None:
        return None
    steps = abs(key[-2])
    scored = math.prod(map(abs, query)) * steps
    return 2 * scored + 2 * output * steps


def _integer(node: Any, name: str) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), 0)


def _integers(node: Any, name: str) -> list[int]:
    found: list[int] = next(([int(each) for each in a.ints] for a in node.attribute if a.name == name), [1])
    return found
