"""What is observed here, what is not, where it goes, and whether it arrives: `neuronscope doctor`."""

from __future__ import annotations

from neuronscope.doctor.apart import examine_apart
from neuronscope.doctor.exports import examine_exports
from neuronscope.doctor.libraries import LibraryReport, examine_library, library_names

__all__ = ["LibraryReport", "examine_apart", "examine_exports", "examine_library", "library_names"]
