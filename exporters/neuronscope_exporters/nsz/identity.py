"""Is it an `.nsz` file, and which kind of thing is it if not?"""

from __future__ import annotations

from typing import Final

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz import documents, layout
from neuronscope_exporters.nsz.damage import DamageLog
from neuronscope_exporters.nsz.layout import Guard, Op
from neuronscope_exporters.nsz.source import Source

_HEAD: Final = 4096
_KNOWN_SIGNATURES: Final = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PFS0": "a Nintendo Switch dump, which uses the same extension",
    b"{": "JSON",
}


def check_identity(source: Source, log: DamageLog) -> None:
    """Refuse what is not `.nsz`; go on where only its first bytes are damaged.

    Raises:
        NszError: it is empty, cut off, or something else.
    """
    path = source.path
    if source.size == 0:
        raise NszError(f"{path} is empty")
    head = source.read(0, _HEAD)
    profile = _profile(head)
    if profile == layout.PROFILE:
        return
    if _has_guard(head):
        log.stretch(0, len(layout.MAGIC), "the file's header is damaged")
    elif profile is not None:
        raise NszError(f"{path} is an MCAP file with profile {profile[:40]!r}, not {layout.PROFILE!r}")
    elif layout.MAGIC.startswith(head[: len(layout.MAGIC)]):
        raise NszError(f"{path} is cut off within its first record")
    else:
        raise NszError(f"{path} is not an .nsz file: it {_looks_like(head)}")


def check_version(source: Source, manifest: documents.ManifestDocument) -> None:
    """Refuse what a later version may mean otherwise.

    Raises:
        NszError: another major version, or a feature that is required and not known.
    """
    major = manifest.version.partition(".")[0]
    if major != layout.MAJOR:
        raise NszError(
            f"{source.path} has format version {manifest.version[:20]}; this reader knows "
            f"{layout.MAJOR}.x. Install a newer neuronscope."
        )
    if manifest.features_required:
        names = ", ".join(manifest.features_required)[:200]
        raise NszError(f"{source.path} needs features that this reader does not know: {names}")


def _profile(head: bytes) -> str | None:
    """The profile of an MCAP header, or None if there is none."""
    start = len(layout.MAGIC) + layout.RECORD.size
    if not head.startswith(layout.MAGIC) or len(head) < start or head[len(layout.MAGIC)] != Op.HEADER:
        return None
    try:
        return layout.read_string(head, start)[0]
    except NszError:
        return None


def _has_guard(head: bytes) -> bool:
    """True when a sound guard is near the start: it is `.nsz` whatever its first bytes say."""
    found = head.find(layout.GUARD_MARK)
    while found >= layout.RECORD.size:
        try:
            Guard.parse(head[found - layout.RECORD.size :])
        except NszError:
            found = head.find(layout.GUARD_MARK, found + 1)
            continue
        return True
    return False


def _looks_like(head: bytes) -> str:
    for signature, name in _KNOWN_SIGNATURES.items():
        if head.startswith(signature):
            return f"looks like {name}"
    if layout.MAGIC in head:
        return "has something before its MCAP magic"
    return f"begins with {head[:8]!r}"
