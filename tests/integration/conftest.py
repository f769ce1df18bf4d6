"""What tests of pages share: a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Browser


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of the module."""
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(shared: Browser) -> Iterator[Browser]:
    """At the size of a desk; no test may leave a word on the console, or a request but for its file."""
    shared.resize(1280, 900)
    shared.prefer("light")
    shared.console.clear()
    shared.requests.clear()
    yield shared
    assert shared.console == []
    assert [address for address in shared.requests if not address.startswith(("file:", "data:"))] == []
