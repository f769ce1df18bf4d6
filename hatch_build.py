"""Compiles the summary kernel while the package is built (docs/decisions/0008).

Without a C compiler the package is built without it, for any platform, and computes summaries with the
frameworks' own operations.  ``python hatch_build.py`` compiles it in place.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "agent" / "neuronscope" / "summaries" / "kernel.c"
LIBRARY = SOURCE.with_name("kernel.native")
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-fopenmp-simd",
    # What vector instructions for sums, minima and maxima need.  Not -ffast-math: linking with it would
    # switch denormal numbers off in the whole process.
    "-fno-math-errno", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-ffinite-math-only",
    "-ffp-contract=fast",
)  # fmt: skip


def digest() -> str:
    """What the library is compiled from."""
    return hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]


def compile_kernel() -> str:
    """Compile the library beside its source; returns why not, or nothing.

    It is replaced as a whole: processes that have the old one loaded keep it.
    """
    if sys.platform not in {"linux", "darwin"}:
        return f"not for {sys.platform}"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    handle, made = tempfile.mkstemp(dir=LIBRARY.parent, prefix="kernel.native.")
    os.close(handle)
    command = [*compiler, *FLAGS, f'-DNS_DIGEST="{digest()}"', str(SOURCE), "-o", made]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr.strip() or f"{compiler[0]} failed"
        os.chmod(made, 0o755)  # noqa: S103  as a library is
        os.replace(made, LIBRARY)  # atomic
    except OSError as error:
        return f"no C compiler: {error}"
    finally:
        Path(made).unlink(missing_ok=True)
    return ""


class KernelBuildHook(BuildHookInterface[Any]):
    """Tries to compile the kernel; with it the wheel is one for this platform, with any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is put together."""
        why_not = compile_kernel()
        if why_not:
            LIBRARY.unlink(missing_ok=True)
            self.app.display_warning(f"neuronscope without its compiled summary kernel: {why_not}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(compile_kernel())
