"""Compiles what is written in C while the package is built (docs/decisions/0008 and 0011).

Two libraries: the summary kernel, which has no Python in it, and the extension module `neuronscope._native`.
Without a C compiler (or, for the module, without Python's headers) the package is built without them and
does the same in Python.  ``python hatch_build.py`` compiles both in place.
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
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).resolve().parent / "agent" / "neuronscope"


class Library(NamedTuple):  # a dataclass would need the module in `sys.modules`, where hatchling puts none
    """A shared library beside its sources.

    Attributes:
        name: what it is called in messages.
        path: where it goes.
        sources: what is compiled; `headers` are read besides.
        extension: it is a module of Python's, and needs its headers.
    """

    name: str
    path: Path
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    headers: tuple[Path, ...] = ()
    extension: bool = False

    def digest(self) -> str:
        """What it is compiled from."""
        found = hashlib.sha256()
        for file in (*self.sources, *self.headers):
            found.update(file.read_bytes())
        found.update(" ".join(self.flags).encode())
        return found.hexdigest()[:16]

    def impossible(self) -> str:
        """Why it is not compiled on a machine like this one, or nothing."""
        if sys.platform not in {"linux", "darwin"}:
            return f"not for {sys.platform}"
        if self.extension:
            if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
                return "not for this Python"
            if not (_headers() / "Python.h").exists():
                return "no Python.h (Debian: apt-get install python3-dev)"
        return ""

    def command(self) -> list[str]:
        """The compiler and what it is told, but for sources and output."""
        around = [f"-I{_headers()}"] if self.extension else []
        if self.extension and sys.platform == "darwin":
            around += ["-undefined", "dynamic_lookup"]
        compiler = shlex.split(os.environ.get("CC", "cc"))
        return [*compiler, *self.flags, f'-DNS_DIGEST="{self.digest()}"', *around]

    def compile(self) -> str:
        """Compile it in place; returns why not, or nothing.

        It is replaced as a whole: processes that have the old one loaded keep it.
        """
        if why_not := self.impossible():
            return why_not
        handle, made = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.")
        os.close(handle)
        command = [*self.command(), *map(str, self.sources), "-o", made]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return done.stderr.strip() or f"{command[0]} failed"
            os.chmod(made, 0o755)  # noqa: S103  as a library is
            os.replace(made, self.path)  # atomic
        except OSError as error:
            return f"no C compiler: {error}"
        finally:
            Path(made).unlink(missing_ok=True)
        return ""


def _headers() -> Path:
    """Where this Python's headers are."""
    return Path(sysconfig.get_paths()["include"])


KERNEL = Library(
    "summary kernel",
    PACKAGE / "summaries" / "kernel.native",
    tuple(sorted((PACKAGE / "summaries").glob("*.c"))),
    (
        "-O3", "-std=gnu11", "-fPIC", "-shared", "-fopenmp-simd",
        # What vector instructions for sums, minima and maxima need.  Not -ffast-math: linking with it would
        # switch denormal numbers off in the whole process.
        "-fno-math-errno", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math",
        "-ffinite-math-only", "-ffp-contract=fast",
    ),
    headers=tuple(sorted((PACKAGE / "summaries").glob("*.h"))),
)  # fmt: skip
NATIVE = Library(
    "engine code",
    # CPython's limited API: one file for every Python from 3.11.
    PACKAGE / "_native.abi3.so",
    tuple(sorted((PACKAGE / "_native").glob("*.c"))),
    ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing"),
    headers=tuple(sorted((PACKAGE / "_native").glob("*.h"))),
    extension=True,
)


class NativeBuildHook(BuildHookInterface[Any]):
    """Tries to compile both; the wheel is then one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel is put together."""
        compiled = [library for library in (KERNEL, NATIVE) if self._compiled(library)]
        if compiled:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"{'cp311-abi3' if NATIVE in compiled else 'py3-none'}-{platform}"

    def _compiled(self, library: Library) -> bool:
        why_not = library.compile()
        if why_not:
            library.path.unlink(missing_ok=True)
            self.app.display_warning(f"neuronscope without its compiled {library.name}: {why_not}")
        return not why_not


def main() -> int:
    """Compile both in place; tells what was not."""
    failed = 0
    for library in (KERNEL, NATIVE):
        why_not = library.compile()
        if why_not:
            failed = 1
            print(f"{library.name}: {why_not}", file=sys.stderr)  # noqa: T201  a command's output
    return failed


if __name__ == "__main__":
    sys.exit(main())
