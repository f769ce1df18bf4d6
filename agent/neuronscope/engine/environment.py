"""What a process runs on: versions of the libraries around models, processor, graphics processors, driver.

Told once, as attributes of the resource, so that every recording holds it.  No library is imported and no
device asked: installed versions are read from the packages' metadata, the rest from the system's files.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from neuronscope.signals import names

# Libraries whose version can change a model's numbers, a prompt, a search or a call.
_LIBRARIES: Final = tuple(
    """
    torch transformers tokenizers sentence-transformers safetensors accelerate peft numpy bitsandbytes torchao
    flash-attn triton vllm onnx onnxruntime onnxruntime-gpu tensorflow tensorflow-cpu keras jax jaxlib flax
    equinox llama-cpp-python tiktoken openai anthropic
    mistralai cohere ollama google-genai boto3 litellm langchain-core llama-index-core qdrant-client chromadb
    faiss-cpu pinecone weaviate-client pymilvus elasticsearch opensearch-py redis psycopg lancedb httpx
    """.split()  # noqa: SIM905 - a list of as many literals reads worse
)
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_CPU: Final = Path("/proc/cpuinfo")


@lru_cache(maxsize=1)
def environment() -> Mapping[str, Any]:
    """Resource attributes; read at first use, and the same for the life of the process."""
    return dict(_attributes())


def _attributes() -> Iterator[tuple[str, Any]]:
    yield "process.runtime.name", sys.implementation.name
    yield "process.runtime.version", platform.python_version()
    yield "os.type", sys.platform
    yield "host.arch", platform.machine()
    if processor := _line(_CPU, "model name"):
        yield "host.cpu.model.name", processor
    yield names.HOST_CPUS, _processors()
    if driver := _driver():
        yield names.GPU_DRIVER, driver
    if gpus := sorted(_gpus()):
        yield names.GPUS, gpus
    yield names.PACKAGES, list(_packages())


def _packages() -> Iterator[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except (PackageNotFoundError, ValueError, TypeError, OSError):  # absent, or its metadata is broken
            continue


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this system
        return os.cpu_count() or 1


def _line(path: Path, key: str) -> str:
    """The value of the first line ``key : value``."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for _, line in zip(range(200), lines, strict=False):
                name, _, value = line.partition(":")
                if name.strip().lower() == key:
                    return value.strip()
    except OSError:
        pass
    return ""


def _driver() -> str:
    """The version in ``NVRM version: NVIDIA UNIX … Kernel Module  570.86.10  …``."""
    words = _line(_DRIVER, "nvrm version").split()
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), "")


def _gpus() -> Iterator[str]:
    try:
        found = list(_GPUS.iterdir())
    except OSError:
        return
    counts: dict[str, int] = {}
    for gpu in found:
        if model := _line(gpu / "information", "model"):
            counts[model] = counts.get(model, 0) + 1
    for model, count in counts.items():
        yield f"{model} ×{count}"
