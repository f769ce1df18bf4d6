"""What a redactor's failure masked is named on the record, so that nobody takes the hash for the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from neuronscope.engine.content import LOG_BODY, ContentPolicy
from neuronscope.engine.guard import GUARD
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import LogRecord

POLICY: Any = Settings(capture_content="span_and_event")


@pytest.fixture(autouse=True)
def faults_are_contained() -> Iterator[None]:
    before, GUARD.reraise = GUARD.reraise, False
    yield
    GUARD.reraise = before


def redact(_: str, text: str) -> str:
    """Fails on some texts."""
    if "bad" in text:
        raise LookupError(text)
    return text.replace("secret", "[masked by the service]")


def test_attributes_whose_redactor_failed_are_named() -> None:
    """Only those: what the redactor changed by itself, and what it left, are as it wanted them."""
    policy = ContentPolicy(POLICY, redact)
    told = policy.apply({names.INPUT_MESSAGES: "bad secret", names.OUTPUT_MESSAGES: "secret", "size": 3})
    assert told[names.MASKED] == [names.INPUT_MESSAGES]
    assert "secret" not in str(told)
    assert names.MASKED not in policy.apply({names.OUTPUT_MESSAGES: "secret"})
    texts = policy.apply({"traceloop.entity.input": ["fine", "bad"]})
    assert texts[names.MASKED] == ["traceloop.entity.input"]


def test_a_message_whose_redactor_failed_is_named() -> None:
    """Beside the attributes of the same record."""
    policy = ContentPolicy(POLICY, redact)
    record = LogRecord(
        time_unix_ns=1, observed_unix_ns=1, body="bad", attributes={names.INPUT_MESSAGES: "bad"}
    )
    told = policy.apply_to_log(record)
    assert told.attributes[names.MASKED] == [names.INPUT_MESSAGES, LOG_BODY]
    assert str(told.body).startswith("[masked sha256:")
    assert (
        names.MASKED
        not in policy.apply_to_log(LogRecord(time_unix_ns=1, observed_unix_ns=1, body="fine")).attributes
    )
