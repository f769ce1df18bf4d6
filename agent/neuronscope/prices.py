"""What a call costs: a dated table of prices, and the arithmetic of the four classes of tokens.

Input that is fresh, read from a cache, or written to one has a price of its own; output has one, reasoning
included.  `gen_ai.usage.input_tokens` counts all input, so fresh input is what the caches leave of it.

No cost is better than a wrong one.  A model that is not in the table has none; nor has a call that read a
cache, used a service tier, sent sound or pictures, or had more input than its entry has a price for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec.structs import asdict

from neuronscope import compiled
from neuronscope.exceptions import ConfigError
from neuronscope.signals import names

BUILT_IN: Final = Path(__file__).with_name("prices.toml")
PER_TOKENS: Final = 1_000_000
USUAL_TIERS: Final = frozenset({"", "default", "standard", "auto", "on_demand"})
# What an id may have beside the name: a path, a publisher, a region; a date, "-latest", "-v1:0".
_PREFIX: Final = re.compile(r"^(?:models/|publishers/[^/]+/models/|(?:us|eu|apac|global)\.)+")
_SUFFIX: Final = re.compile(r"(?:[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|\d{4}|\d{3}|latest)|-v\d+(?::\d+)?)$")
MAX_KNOWN: Final = 4096  # names may be junk
# A model's prices, as `Price` has them, and `up_to`; (): it is not in the table.
Row: TypeAlias = tuple[float, float, float | None, float | None, int | None] | tuple[()]
_CALL: Final = (names.PROVIDER_NAME, names.RESPONSE_MODEL, names.REQUEST_MODEL)
_KEYS: Final = (
    names.INPUT_TOKENS,
    names.OUTPUT_TOKENS,
    names.CACHE_READ_TOKENS,
    names.CACHE_WRITE_TOKENS,
    names.AUDIO_INPUT_TOKENS,
    names.AUDIO_OUTPUT_TOKENS,
    names.IMAGE_OUTPUT_TOKENS,
    names.CACHE_WRITE_1H_TOKENS,
    *_CALL,
    names.OPENAI_RESPONSE_SERVICE_TIER,
    names.OPERATION_NAME,
    names.COST,
    names.COST_PRICES,
)
_EXACT: Final = 1 << 53  # the largest count that a double still holds


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens of one model; None: not known.

    Attributes:
        up_to: largest input, in tokens, that these prices are for; None: any.
        tiers: what other service tiers multiply them by.
        as_of: when the price was looked up.
        source: where.
        cache_write_1h: of tokens that the cache keeps for an hour.  Anthropic's is twice `input`, where
            `cache_write`, for five minutes, is 1.25 times as much.  Source: Anthropic's documentation,
            "Prompt caching", section "Pricing".
    """

    provider: str
    model: str
    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    up_to: int | None = None
    tiers: Mapping[str, float] | None = None
    as_of: str = ""
    source: str = ""
    cache_write_1h: float | None = None

    def cost(
        self,
        input_tokens: int,
        output_tokens: int,
        cache_read: int = 0,
        cache_write: int = 0,
        tier: str = "",
        cache_write_1h: int = 0,
    ) -> float | None:
        """Dollars for a call; None if a price is missing for some of it.

        Args:
            input_tokens: all input, caches included.
            output_tokens: all output, reasoning included.
            cache_write_1h: those of the tokens written that are kept for an hour.
        """
        factor = 1.0 if tier in USUAL_TIERS else (self.tiers or {}).get(tier)
        if factor is None or (self.up_to is not None and input_tokens > self.up_to):
            return None
        if (cache_read and self.cache_read is None) or (cache_write and self.cache_write is None):
            return None
        if cache_write_1h and self.cache_write_1h is None:
            return None
        fresh = input_tokens - cache_read - cache_write
        if fresh < 0 or output_tokens < 0 or cache_read < 0 or not 0 <= cache_write_1h <= cache_write:
            return None  # counts that contradict each other
        dollars = (
            fresh * self.input
            + cache_read * (self.cache_read or 0.0)
            + (cache_write - cache_write_1h) * (self.cache_write or 0.0)
            + output_tokens * self.output
        )
        if cache_write_1h:
            dollars += cache_write_1h * (self.cache_write_1h or 0.0)
        return factor * dollars / PER_TOKENS


class PriceTable:
    """Prices by provider and model.

    Attributes:
        version: which table this is, as spans tell.
    """

    def __init__(
        self, prices: Sequence[Price], version: str, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        self._prices = {(price.provider, price.model): price for price in prices}
        self._aliases = dict(aliases or {})
        self._providers = {price.provider for price in prices} | self._aliases.keys()
        self._found: dict[tuple[str, str], Price | None] = {}
        self._rows: dict[tuple[Any, ...], Row | None] = {}

    def knows(self, provider: object) -> bool:
        """Is there any price of this provider's?"""
        return provider in self._providers

    def __iter__(self) -> Iterator[Price]:
        return iter(sorted(self._prices.values(), key=lambda price: (price.provider, price.model)))

    def __len__(self) -> int:
        return len(self._prices)

    def updated(self, other: PriceTable) -> PriceTable:
        """This table with the other's entries in place of its own."""
        prices = {**self._prices, **other._prices}
        aliases = {**self._aliases, **other._aliases}
        return PriceTable(list(prices.values()), f"{self.version}+{other.version}", aliases)

    def find(self, provider: str, model: str) -> Price | None:
        """The entry of a model, also under an id with a date, a version or a path; None if there is none."""
        key = (provider, model)
        try:
            return self._found[key]
        except KeyError:
            found = next(filter(None, map(self._prices.get, self._candidates(*key))), None)
            if len(self._found) < MAX_KNOWN:
                self._found[key] = found
            return found

    def _candidates(self, provider: str, model: str) -> Iterator[tuple[str, str]]:
        provider = self._aliases.get(provider, provider)
        yield provider, model
        name = _PREFIX.sub("", model)
        for publisher in (f"{provider}/", f"{provider}."):
            name = name.removeprefix(publisher)
        yield provider, name
        while (shorter := _SUFFIX.sub("", name)) != name:
            name = shorter
            yield provider, name

    def cost_of(self, attributes: Mapping[str, Any]) -> float | None:
        """Dollars for a call by its span's attributes; None if that is not known."""
        get = attributes.get  # this runs for every call
        tokens_in, tokens_out = get(names.INPUT_TOKENS), get(names.OUTPUT_TOKENS)
        if tokens_in is None:
            return None
        if tokens_out is None:
            if get(names.OPERATION_NAME) != "embeddings":
                return None  # how much was written is not known
            tokens_out = 0
        if get(names.AUDIO_INPUT_TOKENS) or get(names.AUDIO_OUTPUT_TOKENS) or get(names.IMAGE_OUTPUT_TOKENS):
            return None  # these have prices of their own
        price = self._find_of(get(names.PROVIDER_NAME), get(names.RESPONSE_MODEL), get(names.REQUEST_MODEL))
        if price is None:
            return None
        tier = get(names.OPENAI_RESPONSE_SERVICE_TIER)
        read, written = get(names.CACHE_READ_TOKENS) or 0, get(names.CACHE_WRITE_TOKENS) or 0
        longer = get(names.CACHE_WRITE_1H_TOKENS) or 0
        return price.cost(tokens_in, tokens_out, read, written, str(tier) if tier else "", longer)

    def bill(self, attributes: dict[str, Any]) -> None:
        """Add what a call cost to its attributes, if that is known, and by which table."""
        if _bill(attributes, self._rows, _KEYS, USUAL_TIERS, self.version):
            return  # most calls, and all that tell no tokens
        self._remember(tuple(map(attributes.get, _CALL)))
        if self.knows(attributes.get(names.PROVIDER_NAME)):
            cost = self.cost_of(attributes)
            if cost is not None:
                attributes[names.COST] = cost
            attributes[names.COST_PRICES] = self.version

    def _remember(self, call: tuple[Any, ...]) -> None:
        """Keep the prices of calls like this one at hand."""
        if not _is_named(call) or call in self._rows or len(self._rows) >= MAX_KNOWN:
            return
        price = self._find_of(*call)
        if not self.knows(call[0]):
            self._rows[call] = None
        elif price is None:
            self._rows[call] = ()
        else:
            self._rows[call] = price.input, price.output, price.cache_read, price.cache_write, price.up_to

    def _find_of(self, provider: object, *models: object) -> Price | None:
        """The price by the first of these models that has one."""
        if not isinstance(provider, str):
            return None
        found = (self.find(provider, model) for model in models if isinstance(model, str))
        return next(filter(None, found), None)


def _is_named(call: tuple[Any, ...]) -> bool:
    return all(name is None or name.__class__ is str for name in call)


def bill_in_python(
    attributes: dict[str, Any],
    rows: Mapping[tuple[Any, ...], Row | None],
    keys: Sequence[str],
    tiers: Set[str],
    version: str,
) -> bool:
    """Bill a usual call by the prices that are at hand: text alone, at the usual tier.

    Args:
        rows: prices by provider and models; None: it has none.
        keys: `_KEYS`.

    Returns:
        False: it is not a usual one, or its prices are not at hand; nothing has been added.
    """
    told = tuple(map(attributes.get, keys))
    counts, others = told[:4], told[4:8]
    if counts[0] is None:
        return True
    for tokens in counts:
        if tokens is not None and (tokens.__class__ is not int or not 0 <= tokens <= _EXACT):
            return False
    call, tier, operation = told[8:11], told[11], told[12]
    if not _is_named(call) or call not in rows:
        return False
    row = rows[call]
    if row is None:
        return True
    if counts[1] is None and operation != "embeddings":
        return False  # how much was written is not known
    if any(others) or not (tier is None or (tier.__class__ is str and tier in tiers)):
        return False
    sent, received, read, written = (tokens or 0 for tokens in counts)
    if row:
        cost = Price("", "", *row).cost(sent, received, read, written)
        if cost is not None:
            attributes[keys[-2]] = cost
    attributes[keys[-1]] = version
    return True


_bill: Final = compiled.choose("bill", bill_in_python)


class PriceBook:
    """The table in force, read when the first call needs it."""

    def __init__(self) -> None:
        self._path = ""
        self._table: PriceTable | None = None

    def use(self, path: str) -> None:
        """Bill by the built-in table and the file at `path`.

        Raises:
            ConfigError: there is no such file, or it is no table.
        """
        if path or self._path:
            self._table = load(path)
        self._path = path

    @property
    def table(self) -> PriceTable:
        """The table in force."""
        if self._table is None:
            self._table = load(self._path)
        return self._table

    def bill(self, attributes: dict[str, Any]) -> None:
        """Add what a call cost to its attributes, if that is known."""
        table = self._table
        if table is None:
            table = self.table
        table.bill(attributes)


PRICES: Final = PriceBook()


# --- files -----------------------------------------------------------------------------------------------
def load(path: str = "") -> PriceTable:
    """The built-in table, with the entries of a file of one's own.

    Raises:
        ConfigError: the file cannot be read, or is none.
    """
    built_in = read(BUILT_IN)
    return built_in.updated(read(Path(path))) if path else built_in


def read(path: Path) -> PriceTable:
    """One file.

    Raises:
        ConfigError: it cannot be read, or an entry is not as it must be.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        meta = msgspec.convert(content.pop("meta", {}), _Meta)
        sections = {name: _section(name, section) for name, section in content.items()}
    except OSError as error:
        raise ConfigError(f"prices: cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"prices: {path} is no TOML file: {error}.") from error
    except msgspec.ValidationError as error:
        optional = ", ".join(_Entry.__struct_fields__[2:])
        raise ConfigError(
            f'prices: {path}: {error}. An entry reads `"MODEL" = {{ input = 1.0, output = 2.0 }}`, in'
            f" dollars for a million tokens, under [PROVIDER.models]; it may have {optional}."
        ) from error
    prices = [
        Price(provider, model, source=section.source, **asdict(entry))
        for provider, section in sections.items()
        for model, entry in section.models.items()
    ]
    aliases = {provider: section.alias for provider, section in sections.items() if section.alias}
    return PriceTable(prices, meta.version or path.stem, aliases)


Dollars: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class _Meta(msgspec.Struct):
    version: str = ""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    up_to: int | None = None
    tiers: dict[str, Dollars] | None = None
    as_of: str = ""
    cache_write_1h: Dollars | None = None


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    models: dict[str, _Entry] = {}
    alias: str = ""
    source: str = ""


def _section(provider: str, content: Any) -> _Section:
    try:
        section = msgspec.convert(content, _Section)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"[{provider}] {error}") from error
    if not section.models and not section.alias:
        raise msgspec.ValidationError(f"[{provider}] needs a table `models`, or an `alias`")
    return section
