"""The contracts of adapters: what a client library and a model runtime must tell us.

**Clients** (LLM APIs, embedders, vector stores) are data plus small pure functions: a
`ClientIntegration` names methods and how to read them (`clients`), in our own words (`words`).  The
engine does everything else: wrapping, spans, clocks, context, streams, metrics, content policy, errors,
uninstrumenting.

**Model runtimes** implement `BackendAdapter` (`runtimes`).

An adapter imports nothing from OpenTelemetry and, at module level, nothing from the library it
reads.
"""

from __future__ import annotations

from neuronscope.instrumentation.clients import (
    ClientIntegration,
    Endpoint,
    FoldChunk,
    Gap,
    HandOff,
    Kind,
    ReadHeaders,
    ReadRequest,
    ReadResponse,
    ResponseSeam,
    Snapshot,
    Stream,
    Tell,
    WrappedMethod,
)
from neuronscope.instrumentation.runtimes import (
    AttentionBackend,
    BackendAdapter,
    CallingBackend,
    DescribingBackend,
    ExaminableBackend,
    GradientBackend,
    LayerCallback,
    LearningBackend,
    NamingBackend,
    ObservingBackend,
    PreparingBackend,
)
from neuronscope.instrumentation.words import (
    ErrorFacts,
    Hit,
    Message,
    Operation,
    Peer,
    Query,
    Request,
    Response,
    Stage,
)

__all__ = [
    "AttentionBackend",
    "BackendAdapter",
    "CallingBackend",
    "ClientIntegration",
    "DescribingBackend",
    "Endpoint",
    "ErrorFacts",
    "ExaminableBackend",
    "FoldChunk",
    "Gap",
    "GradientBackend",
    "HandOff",
    "Hit",
    "Kind",
    "LayerCallback",
    "LearningBackend",
    "Message",
    "NamingBackend",
    "ObservingBackend",
    "Operation",
    "Peer",
    "PreparingBackend",
    "Query",
    "ReadHeaders",
    "ReadRequest",
    "ReadResponse",
    "Request",
    "Response",
    "ResponseSeam",
    "Snapshot",
    "Stage",
    "Stream",
    "Tell",
    "WrappedMethod",
]
