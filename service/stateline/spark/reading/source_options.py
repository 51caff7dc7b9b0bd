"""Reads the options of `format("stateline")` for snapshots. `change_requests` has those of streams. Pure.

Case and underscores do not count: `token_file` and `tokenFile` are one option. Unknown names are refused, because a
misspelt `prefix` would read the whole store.

The option `keys` reads single keys, each by a seek. Spark's own filters narrow nothing. Up to 4.3.0 Spark keeps a
Python source's filtered plan with the DataFrame, not with the scan (`PythonDataSourceV2.readInfo`). Unfiltered uses of
that DataFrame then lack rows, and of two filters the last one holds for both. So no reader may have `pushFilters`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from stateline import serdes
from stateline.client.lean.client import LeanClient
from stateline.serde.plain import Serde
from stateline_store.errors import InvalidArgumentError

T = TypeVar("T")
N = TypeVar("N", int, float)
Lease = Literal["driver", "ttl"]

TOKEN_VARIABLE = "STATELINE_TOKEN"
DEFAULT_TTL_S = 300
DEFAULT_MAX_AGE_S = 10
DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024
_LONGEST_PIN = 64  # characters that the server accepts
CONNECTION = ("url", "token", "token_file", "ca_file", "timeout_s", "retry_s")
_BOUNDS = ("lower", "upper", "prefix", "from", "to", "as_of")
ROW_OPTIONS = ("store", "columns", "keys", "split_bytes", *_BOUNDS)
SNAPSHOT_OPTIONS = (
    *CONNECTION,
    *("stores", "snapshot", "pin", "ttl_s", "max_age_s", "lease", "renew", "changes"),
    *ROW_OPTIONS,
)
BACKUP_OPTIONS = ("backup", "backup_as_of", "application_id", *ROW_OPTIONS)
_BOOLEANS = {"true": True, "false": False}
_MOST_S = 10**9
_MOST_BYTES = 2**63
_ID = re.compile(r"[0-9a-f]{24}")

KEYS_AT_ONCE = 500
"""The most keys of one request. server.limit.max must allow as many."""
BYTES_AT_ONCE = 1024 * 1024
"""The most bytes of one request's keys, as JSON: a quarter of the default of server.body.max.bytes."""
_SERDES: Mapping[str, Serde] = {
    each.name: each for each in (serdes.string, serdes.bytes, serdes.int32, serdes.int64, serdes.float64)
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a snapshot's DataFrame. Picklable. Its `repr` shows no token.

    `snapshot` is the id of an existing snapshot. `pin` names the DataFrame's own. Without both, DataFrames that one
    driver loads within `max_age_s` share one. `lease="driver"` renews it until Spark's driver ends. With "ttl", only
    each plan of a DataFrame renews it, and it ends `ttl_s` later."""

    server: LeanClient
    store: str
    stores: tuple[str, ...]
    """The stores of the snapshot, with `store`."""
    snapshot: str | None = None
    pin: str | None = None
    ttl_s: int = DEFAULT_TTL_S
    max_age_s: int = DEFAULT_MAX_AGE_S
    lease: Lease = "driver"
    renew: bool = False
    columns: tuple[str, ...] | None = None
    bounds: Mapping[str, str] = field(default_factory=dict)
    """Parameters of a URL: `lower`, `upper`, `prefix`, `from`, `to`, `as_of`."""
    keys: tuple[Any, ...] | None = None
    """Only these keys, as JSON values."""
    split_bytes: int = DEFAULT_SPLIT_BYTES
    """About how much of a partition one task reads, in bytes on the server's disk."""

    @property
    def is_shared(self) -> bool:
        """Whether other DataFrames of this driver may read the same snapshot."""
        return self.max_age_s > 0 and self.snapshot is None and self.pin is None


def read_options(given: Mapping[str, str], environment: Mapping[str, str]) -> SourceOptions:
    """Read the options of a snapshot. Raises `InvalidArgumentError`."""
    options = named(given, SNAPSHOT_OPTIONS)
    if _choice(options, "changes", _BOOLEANS, default=False):
        raise InvalidArgumentError("changes=true is of streams (spark.readStream): a snapshot has rows, not changes.")
    store = store_of(options)
    snapshot, pin = options.get("snapshot"), options.get("pin")
    if snapshot is not None and (pin is not None or "stores" in options):
        raise InvalidArgumentError("snapshot is a snapshot that there is: leave out pin and stores, or snapshot.")
    if snapshot is not None and not _ID.fullmatch(snapshot):
        raise InvalidArgumentError(f"snapshot={snapshot[:60]!r} is no id of a snapshot: 24 hexadecimal digits are.")
    if pin is not None and not 1 <= len(pin) <= _LONGEST_PIN:
        raise InvalidArgumentError(f"pin={pin[:60]!r} has {len(pin)} characters: 1 to {_LONGEST_PIN} are accepted.")
    stores = _list(options.get("stores", store))
    return SourceOptions(
        server=read_server(options, environment),
        store=store,
        stores=tuple(dict.fromkeys((*stores, store))),
        snapshot=snapshot,
        pin=pin,
        ttl_s=_number(options, "ttl_s", DEFAULT_TTL_S, int),
        max_age_s=0 if options.get("max_age_s") == "0" else _number(options, "max_age_s", DEFAULT_MAX_AGE_S, int),
        lease=_choice(options, "lease", {"driver": "driver", "ttl": "ttl"}, "driver"),
        renew=_choice(options, "renew", _BOOLEANS, default=False),
        **row_options(options),
    )


def read_server(options: Mapping[str, str], environment: Mapping[str, str]) -> LeanClient:
    """Read the server from options by their names in this module. Raises `InvalidArgumentError`."""
    urls = _list(options.get("url", ""))
    if not urls:
        raise InvalidArgumentError('The option url is missing: as in .option("url", "http://localhost:8000").')
    for url in urls:
        _check_url(url)
    if "token" in options and "token_file" in options:
        raise InvalidArgumentError("token and token_file are both given: leave out one.")
    token = options.get("token") if "token_file" not in options else None
    if token is None and "token_file" not in options:
        token = environment.get(TOKEN_VARIABLE) or None
    return LeanClient(
        urls,
        token,
        options.get("token_file"),
        options.get("ca_file"),
        _number(options, "timeout_s", 30.0, float),
        _number(options, "retry_s", 120.0, float),
    )


def is_of_backup(given: Mapping[str, str]) -> bool:
    """Return whether the rows are those of a backup."""
    return "backup" in spelled(given, BACKUP_OPTIONS)


def is_of_changes(given: Mapping[str, str]) -> bool:
    """Return whether the option `changes` asks for a stream of changes."""
    return any(_plain(name) == "changes" and value.lower() == "true" for name, value in given.items())


def spelled(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options under their known names. Others keep theirs."""
    names = {_plain(name): name for name in known}
    return {names.get(_plain(name), name): value for name, value in given.items()}


def named(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the options under their known names. Raises `InvalidArgumentError` for others."""
    names = {_plain(name): name for name in known}
    found: dict[str, str] = {}
    for name, value in given.items():
        if _plain(name) not in names:
            raise InvalidArgumentError(f"There is no option {name[:60]!r}: there are {', '.join(known)}.")
        if names[_plain(name)] in found:
            raise InvalidArgumentError(f"The option {names[_plain(name)]} is given twice: give it once.")
        found[names[_plain(name)]] = value
    return found


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def store_of(options: Mapping[str, str]) -> str:
    """Return the option `store`. Raises `InvalidArgumentError` without one."""
    store = options.get("store", "").strip()
    if not store:
        raise InvalidArgumentError('The option store is missing: name one, as in .option("store", "orders").')
    return store


def row_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return which rows and columns are wanted, as arguments of `SourceOptions`."""
    if "keys" in options and (others := [name for name in ("lower", "upper", "prefix") if name in options]):
        raise InvalidArgumentError(f"keys stands alone: leave out {' and '.join(others)}, or keys.")
    return {
        "columns": None if "columns" not in options else _list(options["columns"]),
        "bounds": {name: options[name] for name in _BOUNDS if name in options},
        "keys": None if "keys" not in options else read_keys(options["keys"]),
        "split_bytes": _number(options, "split_bytes", DEFAULT_SPLIT_BYTES, int, _MOST_BYTES, "bytes"),
    }


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise InvalidArgumentError("The option url is no address of a server: as in http://localhost:8000.")
    if parts.username or parts.password:
        raise InvalidArgumentError("The option url has a name or a password in it: give a token with token_file.")


def _number(
    options: Mapping[str, str],
    name: str,
    default: N,
    kind: Callable[[str], N],
    most: float = _MOST_S,
    unit: str = "seconds",
) -> N:
    text = options.get(name)
    if text is None:
        return default
    try:
        number = kind(text)
        if 0 < number < most:
            return number
    except ValueError:
        pass
    raise InvalidArgumentError(f"{name}={text[:60]!r}: a number of {unit} above 0 is accepted.")


def _choice(options: Mapping[str, str], name: str, choices: Mapping[str, T], default: T) -> T:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in choices:
        raise InvalidArgumentError(f"{name}={text[:60]!r}: {' or '.join(choices)} is accepted.")
    return choices[text.lower()]


def read_keys(text: str) -> tuple[Any, ...]:
    """Read the keys from a JSON list, as in bodies of requests. Raises `InvalidArgumentError`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise InvalidArgumentError(f"""keys={text[:60]!r} is no list in JSON: '["a", "b"]' is one.""")
    return tuple(found)


def distinct_keys(keys: Iterable[Any], store: str, key_type: str) -> tuple[Any, ...]:
    """Return each key once: a server recognises keys of the same bytes only within one request. Raises
    `InvalidArgumentError` for a key that this store cannot have. Keys of type json are refused, because parsed JSON
    does not tell `[1,2]` from `[1, 2]`, which are two keys."""
    found = dict[bytes, Any]()
    for key in keys:
        if key_type == "json":
            raise InvalidArgumentError(
                f"keys is not for keys of type json, as those of {store!r} are: name one by lower and upper."
            )
        try:
            stored = _SERDES[key_type].from_json(key) if key_type in _SERDES else json.dumps(key).encode()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"keys has {key!r:.60}, and those of {store!r} are {key_type}: {error}"
            ) from error
        found.setdefault(stored, key)
    return tuple(found.values())


def refuse_both_signs(bounds: Mapping[str, str], key_type: str) -> None:
    """Raise `InvalidArgumentError` if these bounds of numbers have no stored keys between them."""
    if key_type not in ("int32", "int64", "float64") or not {"lower", "upper"} <= bounds.keys():
        return
    serde, lower, upper = _SERDES[key_type], bounds["lower"], bounds["upper"]
    first, last = serde.parse_text(lower), serde.parse_text(upper)
    if serde.deserialize(first) <= serde.deserialize(last) and first > last:
        is_double = key_type == "float64"
        raise InvalidArgumentError(
            f"lower={lower} and upper={upper} have no keys between them: keys are compared as bytes, and negative "
            f"numbers come after the others{', the least one last' if is_double else ''}. "
            f"{'Read all keys, and filter them.' if is_double else f'Read from {lower} to -1, and from 0 to {upper}.'}"
        )


def in_pieces(keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield these keys in as many requests as they need."""
    piece: list[Any] = []
    size = 0
    for key in keys:
        size += (added := len(json.dumps(key)) + 2)  # with a comma and a space
        if piece and (len(piece) == KEYS_AT_ONCE or size > BYTES_AT_ONCE):
            yield tuple(piece)
            piece, size = [], added
        piece.append(key)
    if piece:
        yield tuple(piece)
