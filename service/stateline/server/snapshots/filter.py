"""Which rows and columns of a snapshot a reader wants, from the parameters of the request."""

from __future__ import annotations

from dataclasses import replace

from stateline.model.store_definition import StoreDefinition
from stateline.rows.columns import row_columns
from stateline.rows.selection import RowSelection, check_times, keys_between, text_of
from stateline.serde.key_text import other_spellings
from stateline.serde.plain import BytesSerde, shown
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.parameters import SPLIT_BYTES
from stateline_store import InvalidArgumentError
from stateline_store.scan import EVERY_KEY, KeyRange

PARAMETERS = ("columns", "lower", "upper", "prefix", "after", "from", "to", "as_of", "split", "skip")
SPLIT_PARAMETERS = ("size_bytes", *(name for name in PARAMETERS if name not in ("columns", "split", "skip")))
_LARGEST = 2**63 - 1
_bytes = BytesSerde()


def read_selection(
    arguments: Arguments, definition: StoreDefinition, allowed: tuple[str, ...] = PARAMETERS
) -> RowSelection:
    """Return what the parameters ask for.

    Raises `InvalidArgumentError` for unreadable or contradictory parameters, and `UnknownQueryTypeError` for times in a
    store without them, or `as_of` in one without versions.
    """
    arguments.refuse_others(allowed)
    columns = arguments.text("columns")
    from_ms, to_ms, as_of = arguments.time("from"), arguments.time("to"), arguments.time("as_of")
    check_times(definition, has_times=from_ms is not None or to_ms is not None, as_of=as_of)
    wanted = RowSelection(None if columns is None else tuple(columns.split(",")), _keys(arguments, definition))
    row_columns(definition, wanted.columns)  # raises for one that there is not
    split = arguments.text("split")
    skip = arguments.integer("skip", 0, 0, _LARGEST, "a signed number of 64 bits")
    keys = EVERY_KEY if split is None else read_split(split)
    return replace(wanted, from_ms=from_ms, to_ms=to_ms, as_of=as_of, split=keys, skip=skip)


def read_split_size(arguments: Arguments, definition: StoreDefinition) -> tuple[RowSelection, int]:
    """Return the rows to split, and the bytes per part. Raises like `read_selection`."""
    wanted = read_selection(arguments, definition, SPLIT_PARAMETERS)
    return wanted, arguments.integer("size_bytes", SPLIT_BYTES, 1, _LARGEST, "a signed number of 64 bits")


def read_selected_keys(arguments: Arguments, definition: StoreDefinition, most_keys: int) -> RowSelection:
    """Return the same for a body, which may name the keys too."""
    wanted = read_selection(arguments, definition, ("keys", "keys_as", *PARAMETERS))
    if "keys" not in arguments:
        return wanted
    keys = {*(given := arguments.keys(definition.key, most_keys)), *other_spellings(definition.key, given).values()}
    inside = (key for key in sorted(keys) if wanted.keys.start <= key)
    return replace(wanted, only=tuple(key for key in inside if wanted.keys.end is None or key < wanted.keys.end))


def _keys(arguments: Arguments, definition: StoreDefinition) -> KeyRange:
    lower, upper, prefix, after = (
        arguments.key(name, definition.key) for name in ("lower", "upper", "prefix", "after")
    )
    if after is not None and not definition.key_value:
        raise InvalidArgumentError(
            f"after is of key-value stores, whose rows come by key; {definition.name!r} is of kind {definition.kind}: "
            "read it by lower and upper, or by from and to."
        )
    keys = keys_between(lower, upper, prefix)
    return keys if after is None else KeyRange(max(keys.start, after + b"\0"), keys.end)


def split_text(keys: KeyRange) -> str:
    """Return ``start.end`` of a split's stored keys, base64url without padding. An empty end is open."""
    return f"{text_of(keys.start)}.{text_of(keys.end or b'')}"


def read_split(text: str) -> KeyRange:
    """Return the range of stored keys of a split. Raises `InvalidArgumentError`."""
    start, dot, end = text.partition(".")
    try:
        if dot:
            return KeyRange(_bytes.parse_text(start), _bytes.parse_text(end) or None)
    except InvalidArgumentError:
        pass
    raise InvalidArgumentError(f"split={shown(text)} is none: name one that …/splits gives.")
