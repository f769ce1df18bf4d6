"""The demo's two programs: how each is started, and how to see that it is ready."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronscope.demo.models import SMOLLM2

MODEL_SERVER: Final = "model-server"
RAG_SERVICE: Final = "rag-service"

COMMON_ENVIRONMENT: Final = {
    # More threads than free cores make a small model several times slower.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Everything is on this machine: no look-ups at a model hub and no question for newer versions.
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Logs are quoted when a program dies; they must not be stuck in a buffer then.
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class Program:
    """How to start a program and how to see that it is ready."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    health_path: str
    loading: str


def model_server(port: int) -> Program:
    """`transformers serve` with SmolLM2, on this port."""
    # transformers' own program, named by its module: a console script's place varies.
    command = (sys.executable, "-m", "transformers.cli.transformers", "serve", SMOLLM2)
    options = ("--host", "127.0.0.1", "--port", str(port), "--device", "cpu")
    return Program(
        name=MODEL_SERVER,
        command=command + options,
        env={},
        port=port,
        health_path="/health",
        loading=f"loading {SMOLLM2} (PyTorch, transformers serve)",
    )


def rag_service(port: int, model_port: int) -> Program:
    """The service, on this port, which asks the model server on that one."""
    return Program(
        name=RAG_SERVICE,
        command=(sys.executable, str(Path(__file__).with_name("service.py"))),
        env={
            "RAG_LLM_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            "RAG_LLM_MODEL": SMOLLM2,
            "RAG_PORT": str(port),
        },
        port=port,
        health_path="/healthz",
        loading="loading MiniLM and indexing the corpus (Qdrant, in memory)",
    )


def without_proxy(env: Mapping[str, str]) -> dict[str, str]:
    """What keeps calls between the two programs from going through a proxy."""
    # The service calls the model by HTTP, and a proxy would be asked for this machine's own addresses.
    own = env.get("no_proxy") or env.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, ("127.0.0.1", "localhost", own)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def free_ports() -> tuple[int, int]:
    """Two different ports that are free now."""
    # Both are held at once, so that they differ.
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def is_healthy(program: Program) -> bool:
    """Does the program answer that it is ready?"""
    connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=2)
    try:
        connection.request("GET", program.health_path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
