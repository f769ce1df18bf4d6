"""The registry of signals: every attribute, event, metric, unit, bucket list and label NeuronScope emits.

One table, many readers: the engine fills attributes by these constants, the aggregator takes buckets
and labels from here, the Prometheus page and OTLP metrics their names, the reference page its rows.
It is written down by kind, in `attributes`, `events` and `metrics`, and read from here.  Whatever is not
in it is not emitted.

Profile: what OpenTelemetry's released GenAI packages emit today — metric names of the semantic
conventions v1.41, the latest span attributes.  Our own live under ``neuronscope.*``.
"""

from neuronscope.signals.attributes import *  # noqa: F403 - all of it is meant to be found here
from neuronscope.signals.events import *  # noqa: F403
from neuronscope.signals.kinds import *  # noqa: F403
from neuronscope.signals.metrics import *  # noqa: F403
