"""The page that Prometheus reads: both formats, read back by prometheus_client's own parsers."""

from __future__ import annotations

import errno
import gzip
import http.client
import logging
import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, contextmanager
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.cardinality import Cardinality
from neuronscope.engine.metrics import Aggregator
from neuronscope.exceptions import ConfigError
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import MetricFamily, MetricPoint, MetricsSnapshot
from neuronscope_exporters.prometheus import MetricsCollector, PrometheusExporter, create, parse_address
from neuronscope_exporters.prometheus import server as server_module
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import render

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
NASTY = 'a "quoted" \\ back\\nslash\nnew line ✓ \ud800'
READABLE = 'a "quoted" \\ back\\nslash\nnew line ✓ ?'


def page_of(aggregator: Aggregator, accept: str = OPENMETRICS, resource: dict[str, Any] | None = None) -> str:
    body, _ = render(MetricsPage(aggregator.collect, resource or {"service.name": "shop"}), accept)
    return body.decode("utf-8")


# prometheus_client leaves this parser's argument without a type.
_parse_openmetrics = cast("Callable[[str], Iterable[Metric]]", parser.text_string_to_metric_families)


def families(text: str) -> dict[str, Metric]:
    found = list(_parse_openmetrics(text) if "# EOF" in text else parse_text(text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def values(family: Metric) -> dict[tuple[str, str], float]:
    """Sample values by name and `le`."""
    return {(sample.name, sample.labels.get("le", "")): sample.value for sample in family.samples}


def busy(labels: tuple[tuple[str, str], ...] = ((names.HTTP_ROUTE, "/a/{x}"),)) -> Aggregator:
    aggregator = Aggregator(now=lambda: 1_700_000_000_500_000_000)
    for value, span in ((0.003, None), (0.02, (0xABC, 0xDEF)), (99.0, (0x123, 0x456))):
        aggregator.observe(names.HTTP_DURATION, value, labels, span)
    aggregator.add(names.RETRIEVALS, 7, ((names.DB_SYSTEM, "qdrant"),))
    aggregator.set(names.OVERHEAD_BUDGET, 0.15)
    return aggregator


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_kind_of_metric_is_read_back(accept: str) -> None:
    """Histogram, counter, gauge and target_info, with types, help and units."""
    found = families(page_of(busy(), accept))
    histogram = found["http_server_request_duration_seconds"]
    read = values(histogram)
    name = "http_server_request_duration_seconds"
    assert (histogram.type, histogram.documentation) == ("histogram", names.HTTP_DURATION.brief)
    assert (read[f"{name}_bucket", "0.005"], read[f"{name}_bucket", "0.025"]) == (1, 2)
    assert (read[f"{name}_bucket", "10.0"], read[f"{name}_bucket", "+Inf"]) == (2, 3)
    assert read[f"{name}_count", ""] == 3
    assert read[f"{name}_sum", ""] == pytest.approx(99.023)
    assert all(sample.labels["http_route"] == "/a/{x}" for sample in histogram.samples)
    counter = found["neuronscope_retrieval_queries"]
    assert counter.type == "counter"
    assert values(counter) == {("neuronscope_retrieval_queries_total", ""): 7}
    assert list(values(found["neuronscope_overhead_budget_ratio"]).values()) == [0.15]
    target = found["target" if accept else "target_info"]
    assert target.samples[0].labels == {"service_name": "shop"}


def test_exemplars_lead_to_the_span_they_came_from() -> None:
    """Trace and span id in hex, the value, the time; within OpenMetrics's 128 characters."""
    samples = families(page_of(busy()))["http_server_request_duration_seconds"].samples
    exemplars = {s.labels["le"]: s.exemplar for s in samples if s.exemplar is not None}
    assert set(exemplars) == {"0.025", "+Inf"}
    exemplar = exemplars["0.025"]
    assert exemplar.labels == {"trace_id": f"{0xABC:032x}", "span_id": f"{0xDEF:016x}"}
    assert exemplar.value == 0.02
    assert str(exemplar.timestamp).startswith("1700000000.5")
    assert sum(len(key) + len(value) for key, value in exemplar.labels.items()) <= 128


def test_text_format_has_no_exemplars() -> None:
    """The older format has no place for them."""
    assert "trace_id" not in page_of(busy(), "")


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_label_values_are_escaped(accept: str) -> None:
    """Quotes, backslashes and new lines come back; a lone surrogate becomes a question mark."""
    found = families(page_of(busy(((names.HTTP_ROUTE, NASTY),)), accept))
    assert found["http_server_request_duration_seconds"].samples[0].labels["http_route"] == READABLE


def test_scores_below_zero_have_buckets_only() -> None:
    """OpenMetrics forbids a sum of values that may be negative, and a count without the sum."""
    aggregator = Aggregator()
    aggregator.observe(names.TOP_SCORE, -0.3)
    read = values(families(page_of(aggregator))["neuronscope_retrieval_top_score"])
    assert read["neuronscope_retrieval_top_score_bucket", "-0.35"] == 0
    assert read["neuronscope_retrieval_top_score_bucket", "+Inf"] == 1
    assert {name for name, _ in read} == {"neuronscope_retrieval_top_score_bucket"}


def test_bad_series_are_left_out_and_the_others_stay() -> None:
    """Non-finite values, a repeated series, a second family of the same name."""
    gauge, labels = names.OVERHEAD_BUDGET, (("a.b", "1"),)
    points = [
        MetricPoint((), math.nan),
        MetricPoint((("x", "y"),), math.inf),
        MetricPoint(labels, 1.0),
        MetricPoint((("a_b", "1"),), 2.0),
        MetricPoint((("c", "1"),), 3.0),
    ]
    snapshot = MetricsSnapshot([MetricFamily(gauge, points), MetricFamily(gauge, [points[2]])], 0, 0)
    body, _ = render(MetricsPage(lambda: snapshot, {}), OPENMETRICS)
    (family,) = [f for f in families(body.decode()).values() if f.name != "target"]
    assert [(s.labels, s.value) for s in family.samples] == [({"a_b": "1"}, 1.0), ({"c": "1"}, 3.0)]


def test_labels_that_fall_together_are_joined() -> None:
    """As OpenTelemetry's compatibility rules say."""
    text = page_of(busy((("a.b", "1"), ("a_b", "2"))))
    sample = families(text)["http_server_request_duration_seconds"].samples[0]
    assert sample.labels["a_b"] == "1;2"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("db.collection.name", "db_collection_name"),
        ("köln-x", "k_ln_x"),
        ("1st", "key_1st"),
        ("__name__", "key__name__"),
        ("", "key_"),
    ],
)
def test_label_names_are_in_prometheus_alphabet(key: str, expected: str) -> None:
    """Letters, digits and underscores; no leading digit, nothing reserved."""
    assert names.prometheus_label(key) == expected
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", expected)


def test_registry_has_one_family_for_each_metric() -> None:
    """No two metrics of the registry share a Prometheus name, with or without suffixes."""
    found = [metric.prometheus_name for metric in names.METRICS.values()]
    assert len(set(found)) == len(found)
    taken = {name + suffix for name in found for suffix in ("_bucket", "_sum", "_count", "_total", "_info")}
    assert not taken & set(found)


def test_thousand_series_are_one_valid_page() -> None:
    """A full aggregator: all series there, in both formats."""
    aggregator = Aggregator(cardinality=Cardinality(10_000))
    for number in range(1500):
        aggregator.observe(names.OPERATION_DURATION, 0.1, ((names.REQUEST_MODEL, f"m{number}"),), (1, 2))
    for accept in ("", OPENMETRICS):
        samples = families(page_of(aggregator, accept))["gen_ai_client_operation_duration_seconds"].samples
        counts = {s.labels["gen_ai_request_model"]: s.value for s in samples if s.name.endswith("_count")}
        assert len(counts) == 1001
        assert counts["other"] == 500


# --- the server -------------------------------------------------------------------------------------


def context_for(setting: str, aggregator: Aggregator | None = None) -> ExporterContext:
    collect = (aggregator or busy()).collect
    return ExporterContext(Settings(prometheus=setting), {"service.name": "shop"}, collect, _ignore, _ignore)


def _ignore(*_: object) -> None:
    pass


@contextmanager
def serving(aggregator: Aggregator | None = None) -> Generator[PrometheusExporter]:
    exporter = create(context_for("127.0.0.1:0", aggregator))
    assert isinstance(exporter, PrometheusExporter)
    try:
        yield exporter
    finally:
        exporter.shutdown(1.0)


def fetch(
    exporter: PrometheusExporter, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection(*exporter.address, timeout=60)) as connection:
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=nonsense", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=9", "application/openmetrics-text; version=1.0.0"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
def test_format_is_negotiated(accept: str | None, content_type: str) -> None:
    """Content type and body agree with the scraper's `Accept`."""
    with serving() as exporter:
        status, headers, body = fetch(exporter, **({"accept": accept} if accept else {}))
    assert status == 200
    assert headers["content-type"].startswith(content_type)
    assert body.endswith(b"# EOF\n") == content_type.startswith("application")
    assert families(body.decode())


def test_page_is_compressed_when_the_scraper_can_read_it() -> None:
    """gzip, with the same page in it."""
    with serving() as exporter:
        _, headers, body = fetch(exporter, accept=OPENMETRICS, accept_encoding="gzip")
        plain = fetch(exporter, accept=OPENMETRICS)[2]
    assert headers["content-encoding"] == "gzip"
    assert int(headers["content-length"]) == len(body) < len(plain)
    assert gzip.decompress(body) == plain


def test_other_paths_and_methods() -> None:
    """404 elsewhere, a health page, HEAD without a body, no POST."""
    with serving() as exporter:
        assert fetch(exporter, "/")[0] == 404
        assert fetch(exporter, "/metrics/../secret")[0] == 404
        assert fetch(exporter, "/healthz")[2] == b"ok\n"
        assert fetch(exporter, "/metrics?name[]=x")[0] == 200
        status, headers, body = fetch(exporter, method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0
        assert fetch(exporter, method="POST")[0] == 501


def test_fault_while_making_the_page_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 and a line in the log; the next scrape is served."""
    from neuronscope.engine.guard import GUARD

    monkeypatch.setattr(GUARD, "reraise", False)
    aggregator = busy()
    with serving(aggregator) as exporter:
        with monkeypatch.context() as patch:
            patch.setattr(server_module, "render", None)
            assert fetch(exporter)[0] == 500
        assert fetch(exporter)[0] == 200


def test_address_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Port 0 picks one; the log and the exporter say which."""
    with caplog.at_level(logging.INFO, "neuronscope"), serving() as exporter:
        host, port = exporter.address
        assert host == "127.0.0.1"
        assert port > 0
        assert exporter.url == f"http://127.0.0.1:{port}/metrics"
        fetch(exporter)
    assert [r.getMessage() for r in caplog.records] == [f"metrics are served at {exporter.url}"]


def test_taken_port_costs_the_page_not_the_service(caplog: pytest.LogCaptureFixture) -> None:
    """One warning that names the port and the ways out; no exporter, no exception."""
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.INFO, "neuronscope"):
        port = taken.getsockname()[1]
        assert create(context_for(f"127.0.0.1:{port}")) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"port {port} " in record.getMessage()
    assert "NEURONSCOPE_PROMETHEUS=0" in record.getMessage()


def test_address_of_another_machine_is_refused_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the system says, the service runs on."""
    assert create(context_for("192.0.2.1:9464")) is None
    assert os.strerror(errno.EADDRNOTAVAIL) in caplog.text


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_addresses(setting: str, expected: tuple[str, int]) -> None:
    """Host and port, loopback unless told otherwise."""
    assert parse_address(setting) == expected


@pytest.mark.parametrize("setting", ["metrics", "host:", "host:70000", "http://host:80", "a b:1", "host:-1"])
def test_what_is_no_address_is_told_at_set_up(setting: str) -> None:
    """A mistake in the setting is the one thing that raises."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(setting)


def test_ipv6_loopback() -> None:
    """Listens, and tells a URL with brackets."""
    exporter = create(context_for("[::1]:0"))
    assert isinstance(exporter, PrometheusExporter)
    try:
        assert exporter.url.startswith("http://[::1]:")
        assert fetch(exporter)[0] == 200
    finally:
        exporter.shutdown(1.0)


def test_without_a_setting_there_is_no_exporter() -> None:
    """Nothing listens unless asked."""
    assert create(context_for("")) is None


def test_shutdown_frees_the_port_at_once_and_twice() -> None:
    """The port can be bound again; a second shutdown is nothing."""
    with serving() as exporter:
        fetch(exporter)
        exporter.shutdown(1.0)
        exporter.shutdown(1.0)
        with socket.create_server(exporter.address):
            pass


def test_scrapers_that_hold_on_cannot_take_more_than_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections use up the bound, more are turned away; with them gone, scrapes are served."""
    monkeypatch.setattr(f"{server_module.__name__}._Handler.timeout", 600.0)
    bound = server_module.MAX_CONCURRENT
    with serving() as exporter, ExitStack() as connections:
        silent = [
            connections.enter_context(socket.create_connection(exporter.address)) for _ in range(bound + 8)
        ]
        turned_away: set[socket.socket] = set()
        while len(turned_away) < 8:
            ended, _, _ = select.select([one for one in silent if one not in turned_away], [], [], 60.0)
            assert ended, f"{len(turned_away)} of {len(silent)} silent connections were turned away"
            turned_away.update(ended)
        still_held = [one for one in silent if one not in turned_away]
        assert len(still_held) == bound
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            fetch(exporter)
        assert select.select(still_held, [], [], 0.0)[0] == []
        connections.close()
        assert _eventually_ok(lambda: fetch(exporter)[0])


def _eventually_ok(ask: Any) -> bool:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            if ask() == 200:
                return True
        except (ConnectionError, http.client.BadStatusLine):
            threading.Event().wait(0.02)
    return False


def test_forked_child_does_not_hold_the_port() -> None:
    """A child that outlives its parent would take scrapes that nobody answers."""
    with serving() as exporter:
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(ready, 1)
            os._exit(0)
        try:
            exporter.shutdown(1.0)
            with (
                pytest.raises(ConnectionRefusedError),
                socket.create_connection(exporter.address, timeout=60),
            ):
                pass
        finally:
            os.write(go, b".")
            os.waitpid(child, 0)
            os.close(ready)
            os.close(go)


def test_platform_serves_what_it_measures() -> None:
    """From `ns.Platform(prometheus=…)` to the page, with the agent's own gauges and the service's name."""
    ns.Platform(prometheus="127.0.0.1:0", service_name="shop")
    (exporter,) = [item for item in ENGINE.exporters if isinstance(item, PrometheusExporter)]
    ENGINE.metrics.add(names.RETRIEVALS, 2, ((names.DB_SYSTEM, "qdrant"),))
    found = families(fetch(exporter, accept=OPENMETRICS)[2].decode())
    assert found["target"].samples[0].labels["service_name"] == "shop"
    assert _total(found["neuronscope_retrieval_queries"].samples) == 2
    assert _total(found["neuronscope_overhead_budget_ratio"].samples) == pytest.approx(0.15)
    assert _total(found["neuronscope_fidelity_state"].samples) == 1


def _total(samples: Iterable[Any]) -> float:
    return sum(float(sample.value) for sample in samples)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_the_page_is_what_prometheus_client_would_write(accept: str) -> None:
    """The same bytes for counters, gauges, histograms, exemplars, units and labels that need escaping."""
    aggregator = busy(((names.HTTP_ROUTE, NASTY), (names.HTTP_REQUEST_METHOD, "GET")))
    aggregator.observe(names.TOP_SCORE, -0.25, ((names.DB_SYSTEM, "qdrant"),), (1, 2))
    aggregator.observe(names.OPERATION_DURATION, 12.5)
    aggregator.add(names.RETRIEVALS, 0.125)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(aggregator.collect))
    encode, _ = choose_encoder(accept)
    ours = re.sub(r"(?m)^(# (HELP|TYPE) )?target(_info)?[ {].*\n", "", page_of(aggregator, accept))
    assert ours == encode(registry).decode()
