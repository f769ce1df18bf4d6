"""``neuronscope run PROGRAM …``: observe any Python program without a change to it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from neuronscope.exceptions import ConfigError, MissingDependencyError
from neuronscope.exporters import registry
from neuronscope.settings import Settings

SITE: Final = Path(__file__).resolve().parent.parent / "_site"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.option("--service-name", metavar="NAME", help="Name of the service.  [env: OTEL_SERVICE_NAME]")
@click.option("--nsz", metavar="DIR", help="Record into `.nsz` files there.  [env: NEURONSCOPE_NSZ]")
@click.option("--prometheus", metavar="[HOST:]PORT", help="Serve /metrics.  [env: NEURONSCOPE_PROMETHEUS]")
@click.option("--otlp-endpoint", metavar="URL", help="Collector.  [env: OTEL_EXPORTER_OTLP_ENDPOINT]")
@click.option("--probes", metavar="PATTERNS", help="Layers to watch, or `off`.  [env: NEURONSCOPE_PROBES]")
@click.option("--max-overhead-pct", metavar="PERCENT", help="[env: NEURONSCOPE_MAX_OVERHEAD_PCT]")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def run(module: str | None, program: tuple[str, ...], **options: str | None) -> None:
    """Run PROGRAM (a script, a console command, or `python …`) and observe it.

    Everything else is configured by NEURONSCOPE_* and OTEL_* variables.
    """
    environ = dict(os.environ)
    for name, value in options.items():
        if value is not None:
            environ[_VARIABLES[name]] = value
    check(Settings.load(environ))
    command = command_for(module, program)
    os.execvpe(command[0], command, observed_environment(environ))  # noqa: S606 - the user's own program


_VARIABLES: Final = {
    "service_name": "OTEL_SERVICE_NAME",
    "nsz": "NEURONSCOPE_NSZ",
    "prometheus": "NEURONSCOPE_PROMETHEUS",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "probes": "NEURONSCOPE_PROBES",
    "max_overhead_pct": "NEURONSCOPE_MAX_OVERHEAD_PCT",
}


def check(settings: Settings) -> None:
    """Find out now what would go wrong later.

    Raises:
        ConfigError: the port is taken, the directory cannot be written, or a collector's address is none.
        MissingDependencyError: what a setting asks for needs a package that is not installed.
    """
    if settings.otlp_protocol == "grpc" and importlib.util.find_spec("grpc") is None:
        raise MissingDependencyError("OTLP over gRPC", "grpcio", "grpc")
    own = (settings.otlp_traces_endpoint, settings.otlp_metrics_endpoint, settings.otlp_logs_endpoint)
    if settings.otlp_endpoint or any(own):
        registry.resolve("neuronscope_exporters.otlp.endpoints:check", "neuronscope")(settings)
    if settings.prometheus:
        host, _, port = settings.prometheus.rpartition(":")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                raise ConfigError(
                    f"/metrics cannot be served at {settings.prometheus}: {error.strerror}. Choose another "
                    "port with --prometheus, or 0 for any."
                ) from None
    if settings.nsz:
        directory = Path(settings.nsz)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"`.nsz` files cannot be written to {settings.nsz!r}: {error.strerror}."
            ) from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"`.nsz` files cannot be written to {settings.nsz!r}: no permission.")


def command_for(module: str | None, program: Sequence[str]) -> list[str]:
    """The command to execute.

    Raises:
        ProgramNotFound: there is no such program.
    """
    if module is not None:
        return [sys.executable, "-m", module, *program]
    if not program:
        raise click.UsageError(
            "what is to be run? E.g. `neuronscope run app.py` or `neuronscope run uvicorn app:app`."
        )
    name, *arguments = program
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ProgramNotFound(f"there is no file {name!r}")
        return [sys.executable, name, *arguments]
    # Console scripts beside this interpreter come first: they are this environment's.
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    if found is None:
        raise ProgramNotFound(f"no program is called {name!r}")
    return [found, *arguments]


class ProgramNotFound(click.ClickException):
    """There is no such program; the shell's exit code for that."""

    exit_code = 127


def observed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a Python program observes itself; its children do so too."""
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(SITE)]
    return {**environ, "PYTHONPATH": os.pathsep.join([str(SITE), *paths])}
