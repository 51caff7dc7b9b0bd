"""The kinds of table that `App.table` declares, and the stores of tables of windows and sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from stateline import serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.serde.plain import Serde
from stateline_store import InvalidArgumentError, TopologyError


def kind_of_table(
    versioned: timedelta | None,
    windowed: timedelta | None,
    *,
    sessions: bool,
    retention: timedelta | None,
    ttl: timedelta | None,
    own_ttl: bool,
) -> Literal["newest", "versioned", "window", "session"]:
    """Return what the table keeps. Raises `InvalidArgumentError` if the arguments contradict each other."""
    if (versioned is not None) + (windowed is not None) + sessions > 1:
        raise InvalidArgumentError("A table is `versioned`, `windowed` or of `sessions`: give one of the three.")
    if (retention is not None) != (windowed is not None or sessions):
        raise InvalidArgumentError(
            f"retention={retention!r}: a table of windows or sessions needs it, to say for how long they are kept; "
            "others have none."
        )
    if (ttl is not None or own_ttl) and (versioned is not None or windowed is not None or sessions):
        raise InvalidArgumentError(
            f"ttl={ttl!r}, own_ttl={own_ttl!r}: only a table of the newest values takes it. Versions are kept for "
            "`versioned`, windows and sessions for `retention`."
        )
    if windowed is not None:
        return "window"
    return "session" if sessions else "newest" if versioned is None else "versioned"


def kept_rows(name: str, key: Serde, value: Serde, versions: timedelta | None, *, persistent: bool) -> StoreDefinition:
    """A store of the newest value of each key, or of all `versions` of this time."""
    if versions is None:
        return stores.timestamped_key_value(name, key=key, value=value, persistent=persistent)
    stores.milliseconds("versioned", versions)  # as the argument is named
    return stores.versioned(name, key=key, value=value, history=versions, persistent=persistent)


def history_of(table: StoreDefinition) -> timedelta | None:
    """Return for how long a table keeps its versions; None for one of the newest values."""
    return timedelta(milliseconds=table.retention_ms) if table.kind == "versioned" else None


def inner_key(source: Topic, kind: str) -> Serde:
    """Return the serde of the inner keys. Raises `TopologyError` for a topic of other keys."""
    if not isinstance(source.key, serdes.WindowedSerde) or source.key.kind != kind:
        wanted = "serdes.windowed(…)" if kind == "window" else "serdes.session_windowed(…)"
        raise TopologyError(
            f"Keys of topic {source.name!r} are {source.key.name}, which are no {kind}s: declare it with "
            f"key={wanted}, or keep another kind of table."
        )
    return source.key.inner


def windows_table(
    name: str, key: Serde, value: Serde, size: timedelta | None, retention: timedelta | None, *, persistent: bool
) -> StoreDefinition:
    """A store of windows of this size, of sessions without one."""
    kept = retention or timedelta(0)
    if size is None:
        return stores.session(name, key=key, value=value, retention=kept, timestamped=True, persistent=persistent)
    return stores.window(name, key=key, value=value, size=size, retention=kept, timestamped=True, persistent=persistent)
