"""Makes one recording of a release under traffic, with the agent's default settings."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.faults.changes import Day
from tests.faults.provider import Provider
from tests.faults.rag import Rag, serve
from tests.faults.reranker import Reranker
from tests.faults.texts import Vectors

import neuronscope as ns
from neuronscope.engine import environment

ADAPTERS = ("uvicorn", "openai", "qdrant", "sentence_transformers", "cohere", "transformers")


class Studio:
    """The servers that recordings share: a context manager."""

    def __init__(self) -> None:
        import cohere
        import httpx
        import openai

        self.vectors = Vectors()
        self.provider = Provider()
        self.other = Provider()
        self.reranker = Reranker(self.vectors)
        self.clients: dict[str, Any] = {
            name: openai.OpenAI(base_url=server.base_url, api_key="test", max_retries=8)
            for name, server in (("provider", self.provider), ("other", self.other))
        }
        self._http = httpx.Client()  # the reranker's SDK has no way to close its own
        self.cohere = cohere.ClientV2(
            base_url=self.reranker.base_url, api_key="test", httpx_client=self._http
        )

    def __enter__(self) -> Studio:
        for server in (self.provider, self.other, self.reranker):
            server.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        for client in self.clients.values():
            client.close()
        self._http.close()
        for server in (self.provider, self.other, self.reranker):
            server.__exit__(None, None, None)

    def record(self, folder: Path, day: Day, seed: int) -> Path:
        """A directory of `.nsz` segments: what production would have written on such a day."""
        server = self.provider if day.provider == "provider" else self.other
        server.begin(replace(day.behaviour, seed=seed))
        rag = Rag(day.release, self.vectors, self.clients[day.provider], self.cohere)
        asked = day.traffic.questions(seed)
        lives = day.restarts + 1
        with _other_work(day.burn):
            for life in range(lives):
                self._live(folder, rag, asked[life * len(asked) // lives : (life + 1) * len(asked) // lives])
        return folder

    def _live(self, folder: Path, rag: Rag, asked: Sequence[str]) -> None:
        release = rag.release
        with (
            _environment(OTEL_RESOURCE_ATTRIBUTES=release.resource),
            _installed(release.libraries),
            ns.Platform(nsz=str(folder), service_name="handbook", **release.settings) as platform,
        ):
            platform.instrument(*ADAPTERS)
            serve(rag, asked)
            platform.flush()


@contextmanager
def _other_work(processes: int) -> Generator[None]:
    """Other programs that compute meanwhile."""
    command = [sys.executable, "-I", "-S", "-c", "while True: sum(range(10**6))"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def _installed(versions: Mapping[str, str]) -> Generator[None]:
    """Have the agent read other versions of libraries."""

    def version(name: str) -> str:
        return versions.get(name) or importlib.metadata.version(name)

    environment.environment.cache_clear()
    with patch.object(environment, "version", version):
        yield
    environment.environment.cache_clear()


@contextmanager
def _environment(**values: str) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
