"""The configuration of a process: what can be set, what its text may say, and where it comes from.

Order of precedence: argument, environment, ``neuronscope.toml`` (or the file that
``NEURONSCOPE_CONFIG`` names), default.  Values are parsed and checked once, then passed down as a
value; nothing else in NeuronScope reads the environment.  CLI help and the reference page are
generated from the fields of `Settings`.
"""

from neuronscope.settings.values import (
    ContentCapture,
    EmbedderProbes,
    LogsMode,
    NszMode,
    OtlpProtocol,
    OverheadAction,
    Settings,
)

__all__ = [
    "ContentCapture",
    "EmbedderProbes",
    "LogsMode",
    "NszMode",
    "OtlpProtocol",
    "OverheadAction",
    "Settings",
]
