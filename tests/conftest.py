"""Every test runs with the guard re-raising, and leaves no platform, patch or provider behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Faults of ours surface; the process is as new afterwards."""
    GUARD.reraise = True
    GUARD.reset()
    yield
    GUARD.reraise = False
    platform.uninstrument()
    ENGINE.stop(1.0)
    platform.forget()
    reset_tracer_provider()


def reset_tracer_provider() -> None:
    """OpenTelemetry's global provider can be set once per process; tests need it more often."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setattr(trace, "_TRACER_PROVIDER", None)  # noqa: B010 - private, and no public way back
        setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())  # noqa: B010
