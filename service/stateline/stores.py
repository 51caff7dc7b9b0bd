"""Stores as an application declares them: `app.store(stores.window("visits", …))`. Kafka Streams' kinds and terms.

Every store takes the serdes of its keys and values. A `persistent` store is in RocksDB; otherwise it is in memory and
restored at each start. A `logged` store has a changelog topic, from which it can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.store_definition import DeclaredKind, StoreDefinition
from stateline.model.topic import checked_store_name
from stateline.serde.plain import Serde
from stateline_store import InvalidArgumentError, StateStore

MILLISECOND = timedelta(milliseconds=1)


@says_where
def key_value(name: str, *, key: Serde, value: Serde, persistent: bool = True, logged: bool = True) -> StoreDefinition:
    """A value by key."""
    return StoreDefinition(checked_store_name(name), "key_value", key, value, persistent, logged)


@says_where
def timestamped_key_value(
    name: str,
    *,
    key: Serde,
    value: Serde,
    ttl: timedelta | None = None,
    own_ttl: bool = False,
    headers: bool = False,
    persistent: bool = True,
    logged: bool = True,
) -> StoreDefinition:
    """A value by key, with the timestamp of its record (KIP-258) and, if wanted, its headers (KIP-1271). An entry is
    deleted if its timestamp is older than the newest one less `ttl`. With `own_ttl`, which keeps headers, a put may
    give its entry another time to live."""
    name, ttl_ms = checked_store_name(name), 0 if ttl is None else milliseconds("ttl", ttl, least=MILLISECOND)
    kind: DeclaredKind = "timestamped_key_value"
    return StoreDefinition(
        name, kind, key, value, persistent, logged, ttl_ms=ttl_ms, own_ttl=own_ttl, headers=headers or own_ttl is True
    )


@says_where
def window(
    name: str,
    *,
    key: Serde,
    value: Serde,
    size: timedelta,
    retention: timedelta,
    timestamped: bool = False,
    headers: bool = False,
    retain_duplicates: bool = False,
    persistent: bool = True,
    logged: bool = True,
) -> StoreDefinition:
    """A value by key and window start. Windows have the length `size`. Windows older than `retention`, measured from
    the newest timestamp, are dropped. `retain_duplicates` keeps every value of a key and start. `headers` keeps the
    headers of records, and their timestamps."""
    size_ms, retention_ms = milliseconds("size", size), milliseconds("retention", retention)
    if not 0 < size_ms <= retention_ms:
        raise InvalidArgumentError(
            f"Window store {name!r}: a size of {size} and a retention of {retention}: the size is more than 0, and the "
            "retention at least as long."
        )
    return StoreDefinition(
        checked_store_name(name),
        "timestamped_window" if timestamped or headers else "window",
        key,
        value,
        persistent,
        logged,
        retention_ms=retention_ms,
        window_size_ms=size_ms,
        retain_duplicates=retain_duplicates,
        headers=headers,
    )


@says_where
def session(
    name: str,
    *,
    key: Serde,
    value: Serde,
    retention: timedelta,
    timestamped: bool = False,
    headers: bool = False,
    persistent: bool = True,
    logged: bool = True,
) -> StoreDefinition:
    """An aggregate by key, session start and session end. Sessions that ended before `retention` are dropped. `headers`
    keeps the headers of records, and their timestamps."""
    kind: DeclaredKind = "timestamped_session" if timestamped or headers else "session"
    retention_ms = milliseconds("retention", retention)
    name = checked_store_name(name)
    return StoreDefinition(name, kind, key, value, persistent, logged, retention_ms=retention_ms, headers=headers)


@says_where
def versioned(
    name: str, *, key: Serde, value: Serde, history: timedelta, persistent: bool = True, logged: bool = True
) -> StoreDefinition:
    """A value by key and time (KIP-889). Queries can ask for the value at any moment of the last `history`."""
    history_ms = milliseconds("history", history)
    name = checked_store_name(name)
    return StoreDefinition(name, "versioned", key, value, persistent, logged, retention_ms=history_ms)


@says_where
def custom(
    name: str,
    factory: Callable[[str], StateStore],
    *,
    key: Serde,
    value: Serde,
    persistent: bool = True,
    logged: bool = True,
) -> StoreDefinition:
    """A store of your own. `factory` makes it from its name, once per task, and once here for a look: that one is never
    opened.

    It implements `stateline_store.StateStore`, whose documentation says how the worker uses it. Processors get it
    unchanged. A logged store overrides `staged_changes` and `restore`. Over HTTP, a subclass of a Stateline kind
    answers like that kind, from its rows: overridden methods are not called. Other stores do not answer over HTTP.
    """
    name = checked_store_name(name)
    check_function(f"Store {name!r}", factory, "name", role="factory")
    return StoreDefinition(name, "custom", key, value, persistent, logged, factory=factory).of_kind_made()


def milliseconds(what: str, duration: timedelta, *, least: timedelta = timedelta(0)) -> int:
    """The duration in whole milliseconds. Raises `InvalidArgumentError` if it is no timedelta, or less than `least`."""
    if not isinstance(duration, timedelta):
        raise InvalidArgumentError(f"{what}={duration!r}: give a timedelta, as timedelta(hours=1).")
    if duration < least:
        at_least = "a millisecond" if least else "0"
        raise InvalidArgumentError(f"{what}={duration!r}: a timedelta of {at_least} or more is accepted.")
    return duration // MILLISECOND
