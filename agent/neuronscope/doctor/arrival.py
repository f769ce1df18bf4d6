"""Does what is sent arrive where people look for it?  Asks the back ends: Jaeger or Tempo, and Prometheus."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from neuronscope.exporters import Examination
from neuronscope.signals import names

TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.25
FRESH_S: Final = 120.0  # a sample this old was not scraped lately
METRIC: Final = names.OVERHEAD_BUDGET.prometheus_sample
Found = TypeVar("Found")


def look_for_trace(base: str, trace_id: str, wait_s: float) -> Examination:
    """Ask Jaeger or Tempo, which have the same path for it, until the probe's trace is there.

    Args:
        base: of their API, such as ``http://127.0.0.1:16686``.
        trace_id: in hexadecimal; "" if no probe was taken by a receiver.
    """
    if not trace_id:
        return Examination(
            "traces arrive", base, ok=False, detail="no probe was sent, so none was looked for",
            advice="First have a receiver of traces take the probe.",
        )  # fmt: skip
    url = f"{base.rstrip('/')}/api/traces/{trace_id}"
    answer = _until(lambda: _asked(url), wait_s)
    if answer.body is not None:
        return Examination("traces arrive", base, ok=True, detail=f"trace {trace_id} is there")
    if answer.status == 404:
        return Examination(
            "traces arrive", base, ok=False, detail=f"trace {trace_id} is not there after {wait_s:g} s",
            advice="The receiver took it. Between it and this back end: does the collector's pipeline export "
            "here, does tail sampling drop what is neither slow nor an error, does it batch for longer than "
            "was waited (--wait)? The collector's log and its otelcol_exporter_send_failed_spans tell.",
        )  # fmt: skip
    return _unanswered("traces arrive", base, answer, "Jaeger's or Tempo's")


def look_for_metrics(base: str, since: float, wait_s: float, *, pushed: bool, page: str) -> Examination:
    """Ask Prometheus for a metric that every process of ours has, until it is there, and fresh.

    Args:
        base: of its API, such as ``http://127.0.0.1:9090``.
        since: when the probe was sent, in seconds since 1970: what is pushed must be newer.
        pushed: are metrics sent over OTLP?  Else somebody has to scrape a page.
        page: the address of the page, if there is one.
    """
    query = urllib.parse.urlencode({"query": f"max by (job) (timestamp({METRIC}))"})
    url = f"{base.rstrip('/')}/api/v1/query?{query}"
    oldest = since - 1 if pushed else since - FRESH_S

    def fresh() -> Answer:
        answer = _asked(url)
        if answer.body is None:
            return answer
        ages = {job: at for job, at in _samples(answer.body) if at >= oldest}
        return Answer(answer.status, ages or None, "no fresh sample" if not ages else "")

    answer = _until(fresh, wait_s)
    if answer.body is not None:
        jobs = ", ".join(sorted(map(str, answer.body)))
        return Examination("metrics arrive", base, ok=True, detail=f"fresh samples of {METRIC}, job {jobs}")
    if answer.status == 200:
        return Examination(
            "metrics arrive", base, ok=False, detail=f"no fresh sample of {METRIC} after {wait_s:g} s",
            advice=_why_no_sample(base, pushed=pushed, page=page),
        )  # fmt: skip
    return _unanswered("metrics arrive", base, answer, "Prometheus's")


class Answer:
    """Of a back end.

    Attributes:
        status: of HTTP; 0 if nobody answered, -1 if the answer made no sense.
        body: decoded JSON; None if it has not what was asked for.
        reason: why not.
    """

    __slots__ = ("body", "reason", "status")

    def __init__(self, status: int, body: Any, reason: str = "") -> None:
        self.status = status
        self.body = body
        self.reason = reason


def _until(ask: Callable[[], Answer], wait_s: float) -> Answer:
    """Ask until there is something, or the time is over."""
    end = time.monotonic() + wait_s
    while True:
        answer = ask()
        if answer.body is not None or time.monotonic() >= end:
            return answer
        time.sleep(POLL_S)


def _asked(url: str) -> Answer:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return Answer(answer.status, json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(error.code, None, f"HTTP status {error.code}")
    except OSError as error:  # also what `URLError` is
        return Answer(0, None, str(error))
    except http.client.HTTPException as error:  # something answers, in another protocol: gRPC, say
        return Answer(-1, None, f"the answer is no HTTP ({type(error).__name__})")
    except ValueError:
        return Answer(-1, None, "the answer is no JSON")


def _samples(body: Any) -> list[tuple[str, float]]:
    """Job and time of the newest sample, of an instant query's result."""
    result = cast("list[dict[str, Any]]", _at(body, "data", "result") or [])
    return [(str(_at(each, "metric", "job") or ""), float(each["value"][1])) for each in result]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return value


def _why_no_sample(base: str, *, pushed: bool, page: str) -> str:
    if pushed:
        return (
            "The receiver took them. Does the collector export metrics to this Prometheus (remote write, or "
            "OTLP with --web.enable-otlp-receiver)? Or set NEURONSCOPE_PROMETHEUS, and have a page scraped."
        )
    if not page:
        return "Neither is a page served nor are metrics sent: set NEURONSCOPE_PROMETHEUS."
    targets = cast(
        "list[dict[str, Any]]",
        _at(_asked(f"{base.rstrip('/')}/api/v1/targets?state=active").body, "data", "activeTargets") or [],
    )
    port = f":{page.rpartition(':')[2]}/"
    ours = [target for target in targets if port in str(target.get("scrapeUrl", ""))]
    for target in ours:
        if target.get("health") != "up":
            why = target.get("lastError") or "not scraped yet"
            return f"Prometheus cannot scrape {target['scrapeUrl']}: {why}. Does the service run?"
    if ours:
        return "Prometheus scrapes that page, and finds none of our metrics: has another program the port?"
    return f"No target of that Prometheus has the port of {page}: add it to scrape_configs."


def _unanswered(what: str, base: str, answer: Answer, whose: str) -> Examination:
    if answer.status:
        advice = f"Something answers there, but not {whose} API: is it the port of its API, without a path?"
    else:
        advice = f"Is it the address of {whose} API as seen from here?"
    return Examination(what, base, ok=False, detail=f"it could not be asked: {answer.reason}", advice=advice)
