"""`.nsz` files: the flight recorder's exporter, writer and reader.

::

    recording = read("run.nsz")          # or a directory of segments, or several paths
    recording.spans, recording.layers, recording.damage

The format is specified in `docs/reference/nsz-format.md`: a strict profile of MCAP that any MCAP
reader opens.
"""

from __future__ import annotations

from neuronscope_exporters.nsz.check import Report, check
from neuronscope_exporters.nsz.copying import Part, cut, merge, write
from neuronscope_exporters.nsz.damage import Damage, Limits
from neuronscope_exporters.nsz.exporter import NszExporter, create
from neuronscope_exporters.nsz.files import recordings
from neuronscope_exporters.nsz.reader import NszFile
from neuronscope_exporters.nsz.recording import Recording, load, read
from neuronscope_exporters.nsz.repair import Repair, repair
from neuronscope_exporters.nsz.stored import StoredTensor
from neuronscope_exporters.nsz.tail import Tail
from neuronscope_exporters.nsz.writer import NszWriter

__all__ = [
    "Damage",
    "Limits",
    "NszExporter",
    "NszFile",
    "NszWriter",
    "Part",
    "Recording",
    "Repair",
    "Report",
    "StoredTensor",
    "Tail",
    "check",
    "create",
    "cut",
    "load",
    "merge",
    "read",
    "recordings",
    "repair",
    "write",
]
