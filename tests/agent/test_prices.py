"""Cost: the arithmetic of four classes of tokens, and no cost rather than a wrong one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronscope as ns
from neuronscope import compiled
from neuronscope import prices as price_module
from neuronscope.cli.prices import prices
from neuronscope.engine import ENGINE
from neuronscope.exceptions import ConfigError
from neuronscope.prices import Price, load, read
from neuronscope.signals import names

CLAUDE = {names.PROVIDER_NAME: "anthropic", names.REQUEST_MODEL: "claude-sonnet-4-5-20250929"}


def cost(**facts: Any) -> float | None:
    keys = {
        "provider": names.PROVIDER_NAME,
        "model": names.REQUEST_MODEL,
        "answered": names.RESPONSE_MODEL,
        "tokens_in": names.INPUT_TOKENS,
        "tokens_out": names.OUTPUT_TOKENS,
        "read": names.CACHE_READ_TOKENS,
        "written": names.CACHE_WRITE_TOKENS,
        "reasoning": names.REASONING_TOKENS,
        "tier": names.OPENAI_RESPONSE_SERVICE_TIER,
        "operation": names.OPERATION_NAME,
        "sound": names.AUDIO_INPUT_TOKENS,
    }
    return load().cost_of({keys[name]: value for name, value in facts.items()})


def test_each_class_of_tokens_has_its_price() -> None:
    """1,000 fresh, 10,000 read, 2,000 written, 500 out: 3.00, 0.30, 3.75 and 15.00 dollars a million."""
    found = cost(
        provider="anthropic", model="claude-sonnet-4-5", tokens_in=13_000, read=10_000, written=2_000,
        tokens_out=500,
    )  # fmt: skip
    assert found == pytest.approx(0.003 + 0.003 + 0.0075 + 0.0075)


def test_reasoning_is_output_and_not_billed_twice() -> None:
    """400 of 500 output tokens are reasoning: 500 are billed."""
    found = cost(provider="openai", model="gpt-5", tokens_in=0, tokens_out=500, reasoning=400)
    assert found == pytest.approx(500 * 10 / 1e6)


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-mini"),
        ("openai", "gpt-4o-mini-2024-07-18"),
        ("anthropic", "claude-3-5-sonnet-latest"),
        ("anthropic", "claude-3-5-sonnet-20241022"),
        ("gcp.gemini", "models/gemini-2.5-flash"),
        ("gcp.gemini", "gemini-2.0-flash-001"),
    ],
)
def test_ids_with_dates_and_versions_are_the_same_model(provider: str, model: str) -> None:
    """Providers answer with dated ids; tables have the model's name."""
    found = load().find(provider, model)
    assert found is not None
    assert found.model in model


def test_what_answered_is_billed_not_what_was_asked_for() -> None:
    """A router may have chosen another model."""
    assert cost(
        provider="openai",
        model="gpt-4o",
        answered="gpt-4o-mini-2024-07-18",
        tokens_in=1_000_000,
        tokens_out=0,
    ) == pytest.approx(0.15)


@pytest.mark.parametrize(
    "facts",
    [
        {"provider": "openai", "model": "gpt-99", "tokens_in": 5, "tokens_out": 5},
        {"provider": "self-hosted", "model": "gpt-4o", "tokens_in": 5, "tokens_out": 5},
        {"provider": "openai", "model": "gpt-4o", "tokens_in": 5},  # output not known
        {"provider": "openai", "model": "gpt-4o", "tokens_out": 5},
        {"provider": "openai", "model": "gpt-3.5-turbo", "tokens_in": 5, "read": 2, "tokens_out": 5},
        {"provider": "openai", "model": "gpt-4o", "tokens_in": 5, "tokens_out": 5, "tier": "priority"},
        {"provider": "openai", "model": "gpt-4o", "tokens_in": 5, "tokens_out": 5, "sound": 4},
        {"provider": "gcp.gemini", "model": "gemini-2.5-pro", "tokens_in": 200_001, "tokens_out": 5},
        {"provider": "openai", "model": "gpt-4o", "tokens_in": 5, "read": 9, "tokens_out": 5},
    ],
)
def test_no_cost_rather_than_a_guess(facts: dict[str, Any]) -> None:
    """Unknown model, provider, count, cache price, tier, kind of input; long input; wrong counts."""
    assert cost(**facts) is None


def test_tiers_and_embeddings() -> None:
    """A tier that the table knows; embeddings write nothing."""
    assert cost(
        provider="openai", model="gpt-5", tokens_in=1_000_000, tokens_out=0, tier="flex"
    ) == pytest.approx(0.625)
    assert cost(
        provider="openai", model="text-embedding-3-small", tokens_in=1_000_000, operation="embeddings"
    ) == pytest.approx(0.02)


def test_every_built_in_price_is_plausible_and_dated() -> None:
    """Output costs no less than input, caches no more than fresh input (written: half as much again)."""
    table = load()
    assert len(table) > 20
    for price in table:
        assert price.as_of == "2025-11-01"
        assert price.source.startswith("https://")
        assert price.output == 0 or price.output >= price.input
        assert price.cache_read is None or price.cache_read < price.input
        assert price.cache_write is None or price.input <= price.cache_write <= 1.5 * price.input
        assert price.cache_write_1h is None or price.cache_write_1h == pytest.approx(2 * price.input)


def test_what_a_cache_keeps_for_an_hour_costs_more() -> None:
    """Of the tokens written, and never more than those; without a price of its own there is no cost."""
    kept = load().find("anthropic", "claude-sonnet-4-5")
    assert kept is not None
    assert kept.cost(10, 0, 0, 10) == pytest.approx(37.5e-6)
    assert kept.cost(10, 0, 0, 10, "", 4) == pytest.approx(46.5e-6)
    assert kept.cost(10, 0, 0, 3, "", 4) is None
    assert replace(kept, cache_write_1h=None).cost(10, 0, 0, 10, "", 4) is None


OWN = """
[meta]
version = "contract-7"

[openai.models]
"gpt-4o" = { input = 1.0, output = 2.0 }

["azure.ai.openai"]
alias = "openai"
"""


def test_a_file_of_ones_own_replaces_and_extends(tmp_path: Path) -> None:
    """Its entries win, aliases bill one provider by another's entries, the version tells of both."""
    path = tmp_path / "prices.toml"
    path.write_text(OWN)
    table = load(str(path))
    assert table.version.endswith("+contract-7")
    own = table.find("openai", "gpt-4o-2024-08-06")
    assert own == Price("openai", "gpt-4o", 1.0, 2.0)
    assert table.find("azure.ai.openai", "gpt-4o") == own
    assert table.find("openai", "gpt-4o-mini") is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not toml", "no TOML file"),
        ("[openai]\n", "needs a table `models`"),
        ('[openai.models]\n"x" = { input = 1 }', "missing required field `output`"),
        ('[openai.models]\n"x" = { input = 1, output = 2, imput = 3 }', "imput"),
        ('[openai.models]\n"x" = { input = "1", output = 2 }', "Expected `float`, got `str`"),
        ('[openai.models]\n"x" = { input = -1, output = 2 }', ">= 0"),
    ],
)
def test_a_wrong_file_is_told_at_the_start(tmp_path: Path, text: str, told: str) -> None:
    """What was expected, and where; the agent does not start with it."""
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read(path)
    with pytest.raises(ConfigError, match=told):
        ns.Platform(prices=str(path))


def test_a_call_has_its_cost_on_span_and_metric(tmp_path: Path) -> None:
    """By the table in force; a model without a price is counted as such, and has none."""
    with ns.testing.FakeOpenAI() as server:
        path = tmp_path / "prices.toml"
        path.write_text('["127.0.0.1"]\nalias = "openai"\n')
        with ns.Platform(prices=str(path)), ns.Scope("cost") as scope:
            ns.instrument("openai")
            client = openai.OpenAI(base_url=server.base_url, api_key="test", max_retries=0)
            for model in ("gpt-4o-mini", "gpt-99"):
                client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "What does it cost?"}]
                )
            ns.flush(60)
            total = ENGINE.metrics.total(names.COST_TOTAL)
            unpriced = ENGINE.metrics.total(names.UNPRICED)
        priced, other = (span.span.attributes for span in scope.artifact.llm_spans)
        expected = load(str(path)).cost_of(priced)
        assert expected
        assert priced[names.COST] == total == expected
        assert names.COST not in other
        assert unpriced == 1


def test_the_command_shows_the_table() -> None:
    """As text with its age, as JSON, and for one model."""
    shown = CliRunner().invoke(prices, ["claude-3-haiku-20240307"])
    assert shown.exit_code == 0
    assert "claude-3-haiku" in shown.output
    assert "0.25" in shown.output
    found = json.loads(CliRunner().invoke(prices, ["--format", "json"]).stdout)
    assert len(found["prices"]) == len(load())
    missing = CliRunner().invoke(prices, ["gpt-99"])
    assert missing.exit_code == 1
    assert "no price" in missing.output


_tokens = st.none() | st.integers(0, 300_000) | st.sampled_from([-1, True, 1.5, 1 << 53, 1 << 54, 1 << 80])
_names = st.sampled_from(
    [
        None,
        "openai",
        "anthropic",
        "gcp.gemini",
        "nobody",
        "gpt-4o-mini",
        "claude-sonnet-4-5",
        "gemini-2.5-pro",
        3,
    ]
)
_calls = st.fixed_dictionaries(
    {names.INPUT_TOKENS: _tokens, names.OUTPUT_TOKENS: _tokens, names.PROVIDER_NAME: _names},
    optional={
        names.CACHE_READ_TOKENS: _tokens,
        names.CACHE_WRITE_TOKENS: _tokens,
        names.AUDIO_INPUT_TOKENS: st.sampled_from([None, 0, 7]),
        names.IMAGE_OUTPUT_TOKENS: st.sampled_from([None, 0, 7]),
        names.CACHE_WRITE_1H_TOKENS: st.sampled_from([None, 0, 7, 2000]),
        names.REQUEST_MODEL: _names,
        names.RESPONSE_MODEL: _names,
        names.OPENAI_RESPONSE_SERVICE_TIER: st.sampled_from([None, "", "default", "flex", "odd", 1]),
        names.OPERATION_NAME: st.sampled_from(["chat", "embeddings", None, 2]),
    },
)
_book = load()


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(_calls)
def test_a_call_is_billed_alike_whichever_way_is_taken(call: dict[str, Any]) -> None:
    """By prices at hand, compiled or in Python, and in the long way; twice, since the first one remembers."""
    rows, keys = _book._rows, price_module._KEYS  # pyright: ignore[reportPrivateUsage]
    wanted = dict(call)
    if call[names.INPUT_TOKENS] is not None and _book.knows(call[names.PROVIDER_NAME]):
        dollars = _book.cost_of(call)
        if dollars is not None:
            wanted[names.COST] = dollars
        wanted[names.COST_PRICES] = _book.version
    for _ in range(2):
        found = dict(call)
        if call[names.INPUT_TOKENS] is not None:
            _book.bill(found)
        assert found == wanted
    ways = [price_module.bill_in_python, *filter(None, [compiled.find("bill")])]
    told = [dict(call) for _ in ways]
    answers = {
        bill(each, rows, keys, price_module.USUAL_TIERS, _book.version)
        for bill, each in zip(ways, told, strict=True)
    }
    assert len(answers) == 1
    assert all(each == (wanted if answers == {True} else call) for each in told)
