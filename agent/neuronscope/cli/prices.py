"""``neuronscope prices``: what calls are billed by, and how old that is."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, date, datetime

import click
import msgspec

from neuronscope.prices import Price, load
from neuronscope.settings import Settings

OLD_DAYS = 180
_HEAD = ("provider", "model", "input", "cache read", "cache write", "output", "as of")


@click.command()
@click.argument("model", required=False)
@click.option("--provider", help="As in gen_ai.provider.name.")
@click.option("--file", "path", help="A table of your own, as NEURONSCOPE_PRICES names it.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def prices(model: str | None, provider: str | None, path: str | None, form: str) -> None:
    """Show the prices of models in dollars for a million tokens.

    With MODEL, the entry that a call of that model is billed by; exit code 1 if there is none.
    """
    table = load(Settings.load().prices if path is None else path)
    providers = [provider] if provider else sorted({price.provider for price in table})
    if model:
        shown = [price for p in providers if (price := table.find(p, model)) is not None]
        if not shown:
            raise click.ClickException(
                f"no price for {model!r}: calls of it have no cost. Put it into a file of your own, and name "
                "that by NEURONSCOPE_PRICES."
            )
    else:
        shown = [price for price in table if price.provider in providers]
    if form == "json":
        click.echo(msgspec.json.encode({"version": table.version, "prices": [asdict(p) for p in shown]}))
        return
    click.echo(f"Prices {table.version}, in US dollars for a million tokens")
    for line in _rows(shown):
        click.echo(line)
    old = [price for price in shown if _age_days(price) > OLD_DAYS]
    if old:
        click.echo(
            f"{len(old)} of {len(shown)} prices are older than {OLD_DAYS} days. Look them up, and put what "
            "has changed into a file that NEURONSCOPE_PRICES names.",
            err=True,
        )


def _rows(shown: list[Price]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("provider", "model", "input", "cache read", "cache write", "output", "as of")
    ]
    rows += [
        (
            price.provider,
            price.model,
            *("-" if p is None else f"{p:g}" for p in (price.input, price.cache_read, price.cache_write)),
            f"{price.output:g}",
            price.as_of,
        )
        for price in shown
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = 2
    return [
        "  ".join(
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _age_days(price: Price) -> float:
    try:
        return (datetime.now(UTC).date() - date.fromisoformat(price.as_of)).days
    except ValueError:
        return float("inf")
