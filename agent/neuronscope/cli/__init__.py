"""The command line: ``neuronscope run | demo | view | ls | check | …``.

Exit codes: 0 done; 1 the command failed, the message says why; 2 wrong usage or setting; 127 no such
program; 130 interrupted; 141 nobody reads the output any more; `run` ends with the program's own.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import click

from neuronscope._version import __version__
from neuronscope.cli.printing import abandon_output, prepare
from neuronscope.exceptions import ConfigError, NeuronscopeError

_COMMANDS = {
    "baseline": "neuronscope.cli.baseline:baseline",
    "check": "neuronscope.cli.check:check",
    "cut": "neuronscope.cli.copy:cut",
    "dashboards": "neuronscope.cli.dashboards:dashboards",
    "demo": "neuronscope.cli.demo:demo",
    "diff": "neuronscope.cli.diff:diff",
    "doctor": "neuronscope.cli.doctor:doctor",
    "export": "neuronscope.cli.export:export",
    "ls": "neuronscope.cli.ls:list_recordings",
    "merge": "neuronscope.cli.copy:merge",
    "prices": "neuronscope.cli.prices:prices",
    "run": "neuronscope.cli.run:run",
    "view": "neuronscope.cli.view:view",
}


UNREAD: Final = 128 + 13  # SIGPIPE's number, everywhere


class _Lazy(click.Group):
    """Imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        from importlib import import_module

        module, _, name = target.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Where nobody reads the output, end as by SIGPIPE: 1 would say that a gate is shut."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            pass
        except SystemExit as ended:  # rich's way to tell it
            if not isinstance(ended.__context__, BrokenPipeError):
                raise
        abandon_output()
        raise click.exceptions.Exit(UNREAD)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="neuronscope")
def cli() -> None:
    """From the alert to the neuron: observe services built on models."""


def main() -> None:
    """The console script: clear one-line errors, and exit codes that mean something."""
    prepare()
    try:
        # Outside of its standalone mode click returns the code of an `Exit` instead of raising it.
        code = cli(standalone_mode=False)
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            click.echo(error.format_message(), err=True)  # a group alone: its help, not a mistake in a line
            sys.exit(2)
        _fail(error.format_message(), 2, error.ctx)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except click.exceptions.Exit as request:
        sys.exit(request.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except ConfigError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error), 1)
    except NeuronscopeError as error:
        _fail(str(error), 1)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int, ctx: click.Context | None = None) -> None:
    message = re.sub(r"\s*\n\s*", " ", message.strip())
    hint = f" Try `{ctx.command_path} --help`." if ctx is not None else ""
    if hint and not message.endswith((".", "?", "!")):
        message += "."
    click.echo(f"neuronscope: {message}{hint}", err=True)
    sys.exit(code)
