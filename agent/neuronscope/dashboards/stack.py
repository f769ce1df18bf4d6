"""The configuration of Prometheus, Alertmanager and Grafana around the rules and dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.dashboards.promql import JOB
from neuronscope.dashboards.thresholds import Receivers, Thresholds

_SAME: Final = [JOB]


def prometheus() -> Mapping[str, Any]:
    """Scrapes services' /metrics pages; rules beside this file."""
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "30s"},
        "rule_files": ["rules.yml", "alerts.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]},
        "scrape_configs": [
            {
                # One file a service in `targets/`: its name is the service's, in every dashboard and alert.
                "job_name": "neuronscope",
                "file_sd_configs": [{"files": ["targets/*.yml"], "refresh_interval": "30s"}],
            },
            {"job_name": "collector", "static_configs": [{"targets": ["collector:8888"]}]},
            # What services send over OTLP and the collector counts of spans, under the services' names.
            {
                "job_name": "otlp",
                "honor_labels": True,
                "static_configs": [{"targets": ["collector:8889"]}],
            },
            {"job_name": "prometheus", "static_configs": [{"targets": ["127.0.0.1:9090"]}]},
        ],
    }


def targets() -> Mapping[str, str]:
    """The demo's two services."""
    return {
        name: f'- targets: ["{name}:9464"]\n  labels: {{job: {name}}}\n'
        for name in ("rag-service", "model-server")
    }


def alertmanager(thresholds: Thresholds) -> Mapping[str, Any]:
    """Routes by severity; a cause keeps its consequences quiet."""
    receivers = thresholds.receivers
    return {
        "route": {
            "receiver": "nobody",
            "group_by": ["alertname", JOB],
            "group_wait": "15s",
            "group_interval": "2m",
            "repeat_interval": f"{max(1, receivers.repeat_hours)}h",
            "routes": [
                {"receiver": "page", "matchers": ['severity="page"', 'alertname=~"Neuronscope.+"']},
                {
                    "receiver": "ticket",
                    "matchers": ['severity="ticket"', 'alertname=~"Neuronscope.+"'],
                    "group_wait": "2m",
                    "repeat_interval": "24h",
                },
            ],
        },
        "inhibit_rules": [
            # The same thing said with less urgency.
            {
                "source_matchers": ['severity="page"'],
                "target_matchers": ['severity=~"ticket|info"'],
                "equal": ["alertname", JOB],
            },
            # A service that is not heard of has nothing to say about anything else.
            _inhibit(
                "NeuronscopeAgentSilent",
                "NeuronscopeObjectiveSilent|NeuronscopeCanariesSilent|NeuronscopeDriftUnwatched",
            ),
            # Another embedder moves scores, margins and what canaries of texts find.
            _inhibit(
                "NeuronscopeEmbedderMismatch", "NeuronscopeRetrievalDrift|NeuronscopeEmptyRetrievalBurn"
            ),
            # What canaries find directly explains what users find.
            _inhibit("NeuronscopeCanaryOverlap", "NeuronscopeRetrievalDrift", severity="ticket"),
            _inhibit(
                "NeuronscopeNonFinite",
                "NeuronscopeFiniteOutputsBurn|NeuronscopeRangeUsed|NeuronscopeDeadUnits",
            ),
            _inhibit("NeuronscopeCostSpike", "NeuronscopeCostHigh"),
        ],
        "receivers": [{"name": "nobody"}, *_receivers(receivers)],
    }


def _inhibit(cause: str, consequences: str, severity: str = "") -> Mapping[str, Any]:
    targets = [f'alertname=~"{consequences}"', *([f'severity="{severity}"'] if severity else [])]
    return {"source_matchers": [f'alertname="{cause}"'], "target_matchers": targets, "equal": _SAME}


def _receivers(receivers: Receivers) -> list[Mapping[str, Any]]:
    return [
        {"name": name, **({"webhook_configs": [{"url": url, "send_resolved": True}]} if url else {})}
        for name, url in (("page", receivers.page), ("ticket", receivers.ticket))
    ]


def datasources() -> Mapping[str, Any]:
    """Grafana's data sources; exemplars lead to Jaeger, to Tempo and to the command for the recording."""
    traces = {"nodeGraph": {"enabled": True}}
    links = [
        {"name": "trace_id", "datasourceUid": "jaeger", "urlDisplayLabel": "Trace in Jaeger"},
        {"name": "trace_id", "datasourceUid": "tempo", "urlDisplayLabel": "Trace in Tempo"},
        {
            "name": "trace_id",
            "url": "/d/neuronscope-service?viewPanel=1000&var-trace=$${__value.raw}",
            "urlDisplayLabel": "Command for the .nsz recording",
        },
    ]
    return {
        "apiVersion": 1,
        "datasources": [
            _datasource(
                "prometheus",
                "${PROMETHEUS_URL}",
                {"httpMethod": "POST", "timeInterval": "15s", "exemplarTraceIdDestinations": links},
                isDefault=True,
            ),
            _datasource("jaeger", "${JAEGER_URL}", traces),
            # Not part of the stack: point TEMPO_URL at yours.
            _datasource("tempo", "${TEMPO_URL}", traces),
            _datasource("alertmanager", "${ALERTMANAGER_URL}", {"implementation": "prometheus"}),
        ],
    }


def _datasource(kind: str, url: str, settings: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    return {
        "name": kind.title(),
        "uid": kind,
        "type": kind,
        "access": "proxy",
        "url": url,
        "jsonData": settings,
        **more,
    }


def providers() -> Mapping[str, Any]:
    """Where Grafana finds the dashboards."""
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "neuronscope",
                "folder": "NeuronScope",
                "type": "file",
                "allowUiUpdates": False,
                "options": {"path": "/var/lib/grafana/dashboards/neuronscope"},
            }
        ],
    }
