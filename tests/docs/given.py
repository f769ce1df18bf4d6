"""What the Python of a page finds: the services, clients and models that its reader has."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import neuronscope as ns
from collectors import serving

Names = dict[str, Any]


@contextmanager
def provider() -> Generator[Names]:
    """A provider that speaks OpenAI's protocol, at the SDK's variables; and a service that asks it."""
    with ns.testing.FakeOpenAI() as server:
        variables = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "test"}
        with patch.dict(os.environ, variables):
            import openai

            client = openai.OpenAI(max_retries=0)
            messages: Any = [{"role": "user", "content": "Hello"}]

            def ask(text: str) -> str:
                answer = client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": text}]
                )
                return str(answer.choices[0].message.content)

            yield {"client": client, "messages": messages, "service": SimpleNamespace(ask=ask)}
            client.close()


@contextmanager
def store() -> Generator[Names]:
    """A vector store with a few documents, and an embedder behind an API."""
    from qdrant_client import QdrantClient
    from qdrant_client.models import Distance, PointStruct, VectorParams

    with provider() as names:
        client = QdrantClient(":memory:")
        vectors = [[float(i == j) for j in range(3)] for i in range(3)]
        for name in ("docs", "handbook"):
            client.create_collection(name, vectors_config=VectorParams(size=3, distance=Distance.COSINE))
            points = [PointStruct(id=i, vector=vector, payload={}) for i, vector in enumerate(vectors)]
            client.upsert(name, points=points)
        yield {
            **names,
            "client": SimpleNamespace(
                query_points=client.query_points, embeddings=names["client"].embeddings
            ),
            "store": client,
            "vectors": vectors * 20,
            "text": "a document",
            "vector": [0.5, 0.25, -1.0],
        }
        client.close()


@contextmanager
def model() -> Generator[Names]:
    """A small Llama, and what it is asked."""
    import torch

    from tinymodels import llama

    found = llama(layers=16)
    yield {
        "torch": torch,
        "model": found,
        "input_ids": torch.tensor([[3, 4, 5]]),
        "direction": torch.ones(found.config.hidden_size),
    }


@contextmanager
def recording() -> Generator[Names]:
    """A recording of some calls, in the folder `recordings`."""
    with provider() as names, ns.Platform(nsz="recordings", service_name="shop"):
        ns.instrument("openai")
        for _ in range(8):
            names["service"].ask("Hello")
        ns.flush(60)
        ns.uninstrument()
    yield {}


@contextmanager
def lambda_function() -> Generator[Names]:
    """A provider, and a collector that has the span of the invocation when the page ends."""
    with provider(), serving() as collector:
        with patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}):
            yield {}
        assert collector.spans == ["chat gpt-4o-mini"]


@contextmanager
def onnx_file() -> Generator[Names]:
    """A model of one layer, in the file `encoder.onnx`."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((4, 3), dtype=np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="dense")],
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [weight],
    )
    onnx.save(helper.make_model(graph), "encoder.onnx")
    yield {"ns": ns}


def nothing() -> AbstractContextManager[Names]:
    """The page brings all."""
    return nullcontext({})


GIVEN: dict[str, Callable[[], AbstractContextManager[Names]]] = {
    "": nothing,
    "provider": provider,
    "store": store,
    "model": model,
    "recording": recording,
    "onnx_file": onnx_file,
    "lambda_function": lambda_function,
}
