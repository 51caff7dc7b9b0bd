"""The declaration of a store. Each task builds its own store from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

import stateline_store
from stateline.config.settings import as_text
from stateline.model.methods_of_tables import HasNoMethodsOfTables
from stateline.model.topic import Topic
from stateline.serde.plain import Serde, check_serde, shown, type_name
from stateline_store import (
    InvalidArgumentError,
    StateStore,
    StoreKind,
    StoreTypes,
    TopologyError,
    TransactionalStore,
)
from stateline_store.layout import is_timestamped, plain_kind

DeclaredKind: TypeAlias = (
    StoreKind | Literal["timestamped_key_value", "timestamped_window", "timestamped_session", "custom"]
)
"""A kind of store, with or without timestamps (`Layout.declared_kind`), or "custom" for a user's own."""

_KINDS = (
    stateline_store.KeyValueStore,
    stateline_store.WindowStore,
    stateline_store.SessionStore,
    stateline_store.VersionedStore,
)
COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
DAY_MS = 24 * 60 * 60 * 1000
"""Kafka Streams adds a day for clocks that differ. For the retention of windows it is a setting
(windowstore.changelog.additional.retention.ms), for the compaction lag of versions a constant
(VersionedChangelogTopicConfig)."""
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoreDefinition(HasNoMethodsOfTables):
    """The declaration of a store.

    - `source` is the topic of a table; None for other stores.
    - `retention_ms` applies to windows, sessions and versions (the history). `session_gap_ms` applies to an operator's
      sessions. `ttl_ms` applies to timestamped key-value stores; 0 means that entries do not expire.
      `own_ttl`: an entry may have a time to live of its own.
    - `factory` makes a store of the user's own from its name.
    - `is_operators`: only an operator writes the store.
    - `changelog_overrides` are the settings given to `with_logging`.
    - `headers`: each value has its record's headers (KIP-1271).
    """

    name: str
    kind: DeclaredKind
    key: Serde
    value: Serde
    persistent: bool = True
    logged: bool = True
    source: Topic | None = None
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False
    factory: Callable[[str], StateStore] | None = None
    is_operators: bool = False
    session_gap_ms: int = 0
    ttl_ms: int = 0
    own_ttl: bool = False
    changelog_overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    headers: bool = False

    def __post_init__(self) -> None:
        check_serde(self.key)
        check_serde(self.value)
        for name in ("persistent", "logged", "headers", "own_ttl"):
            if not isinstance(given := getattr(self, name), bool):
                raise InvalidArgumentError(f"Store {self.name!r}: {name}={shown(given)}: give True or False.")
        if self.headers and not self.timestamped:
            raise InvalidArgumentError(f"Store {self.name!r} is {self.kind}: only stores with timestamps have headers.")

    def with_logging(self, settings: Mapping[str, object]) -> StoreDefinition:
        """Return this store with settings for its changelog, ``{"segment.ms": 60000}`` (`withLoggingEnabled` of Kafka
        Streams).

        They win over `topic.*` and Stateline's own. An existing changelog keeps its settings. Raises
        `InvalidArgumentError` for a table, because its topic is the user's. Also raises it for values other than text,
        numbers, true or false, and for a `deleting_policy`. Kafka refuses unknown names when the changelog is created.
        """
        if self.source is not None:
            raise InvalidArgumentError(
                f"Changelog of store {self.name!r}: a table has none but its topic, {self.source.name!r}. Give "
                "that topic its settings."
            )
        overrides = topic_settings(f"Store {self.name!r}", settings)
        logged = replace(self, logged=True, changelog_overrides=overrides)
        policy = overrides.get("cleanup.policy", "compact")
        if not {*policy.replace(" ", "").split(",")} <= {"compact", "delete"}:
            raise InvalidArgumentError(
                f"Changelog of store {self.name!r}: cleanup.policy={policy!r}: 'compact', 'delete' and "
                "'compact,delete' are accepted."
            )
        if logged.deleting_policy() is not None:
            raise InvalidArgumentError(
                f"Changelog of store {self.name!r}: cleanup.policy={policy!r} would delete rows from it "
                "that the store still has. Leave it out, or give 'compact', or 'compact,delete' with a retention.ms."
            )
        return logged

    def deleting_policy(self, defaults: Mapping[str, str] = MappingProxyType({})) -> str | None:
        """Return the changelog's cleanup.policy if it would delete rows that the store still has; else None.

        Such a policy lacks compact, or has delete without a retention.ms. `defaults` are the settings `topic.*`.
        """
        if self.plain_kind in ("window", "session"):
            return None
        settings = {**defaults, **self.changelog_overrides}
        policy = settings.get("cleanup.policy", "compact")
        parts = policy.replace(" ", "").split(",")
        return policy if "compact" not in parts or ("delete" in parts and "retention.ms" not in settings) else None

    def with_logging_disabled(self) -> StoreDefinition:
        """Return this store without a changelog, like ``logged=False`` (`withLoggingDisabled` of Kafka Streams). Raises
        `InvalidArgumentError` for a table."""
        if self.source is not None:
            raise InvalidArgumentError(
                f"with_logging_disabled of {self.name!r}: a table's topic, {self.source.name!r}, is what it is made of."
            )
        return replace(self, logged=False, changelog_overrides={})

    def build(self) -> StateStore:
        """Return a new store, not yet opened. Raises `TopologyError` if the factory's store does not fit."""
        return self._own() if self.factory is None else self._of_the_users(self.factory(self.name))

    def of_kind_made(self) -> StoreDefinition:
        """Return this declaration with the kind of the factory's store. If the factory makes a subclass of a kind of
        Stateline's, its rows are that kind's. Otherwise return it unchanged. Raises the factory's errors."""
        made = None if self.factory is None else self.factory(self.name)
        if not isinstance(made, _KINDS):
            return self
        schema = made.schema
        return replace(
            self,
            kind=cast(DeclaredKind, made.layout.declared_kind),
            retention_ms=0 if schema.segments is None else schema.segments.retention_ms,
            window_size_ms=schema.window_size_ms,
            retain_duplicates=schema.retain_duplicates,
        )

    @property
    def timestamped(self) -> bool:
        """Whether each value has a timestamp in the store's bytes (KIP-258's format)."""
        return is_timestamped(self.kind)

    @property
    def plain_kind(self) -> str:
        """The kind without timestamps, like `StoreSchema.kind`."""
        return plain_kind(self.kind)

    @property
    def types(self) -> StoreTypes:
        """The types of its bytes. The files keep them, and each opening compares them."""
        gap_ms = self.session_gap_ms or None
        return StoreTypes(type_name(self.key), type_name(self.value), self.window_size_ms or None, gap_ms)

    @property
    def form(self) -> str:
        """The kind, and whether values have headers, like `Layout.form`."""
        return f"{self.kind}{' with headers' if self.headers else ''}"

    @property
    def description(self) -> str:
        """A description of its bytes. If it is equal in two processes, each can read the bytes of the other."""
        return f"{self.kind} with {self.types}{' and headers' if self.headers else ''}"

    @property
    def plain_description(self) -> str:
        """The description without timestamps. If it is equal, stores can be restored from the same changelog, and can
        show each other's rows."""
        return f"{self.plain_kind} with {self.types}{' and headers' if self.headers else ''}"

    @property
    def key_value(self) -> bool:
        """Whether the store answers key and range queries."""
        return self.kind in ("key_value", "timestamped_key_value")

    @property
    def external(self) -> str | None:
        """The id of the Kafka Streams application that owns the store; None for the application's own."""
        return None if self.source is None else self.source.external

    def changelog(self, application_id: str) -> str | None:
        """Return the topic that restores this store: a table's topic, or a changelog. None without one."""
        if self.source is not None:
            return self.source.name
        return changelog_name(application_id, self.name) if self.logged else None

    def changelog_settings(
        self, defaults: Mapping[str, str] = MappingProxyType({}), window_additional_ms: int = DAY_MS
    ) -> Mapping[str, str]:
        """Return the settings of a new changelog, by Kafka Streams' rule: the store's < `defaults` (`topic.*`) < those
        of `with_logging`. Only `with_logging` can change how long windows, sessions and versions are kept.
        """
        return {**self._policy(), **defaults, **self._kept_for(window_additional_ms), **self.changelog_overrides}

    def _policy(self) -> Mapping[str, str]:
        if self.key_value or self.kind in ("versioned", "custom"):
            return COMPACTED
        # With duplicates no record is ever replaced (Kafka Streams: `WindowStoreBuilder`).
        policy = "delete" if self.retain_duplicates and not self.timestamped else "compact,delete"
        return {**COMPACTED, "cleanup.policy": policy}

    def _kept_for(self, window_additional_ms: int) -> Mapping[str, str]:
        if self.key_value or self.kind == "custom":
            return {}
        if self.kind == "versioned":
            return {"min.compaction.lag.ms": str(self.retention_ms + DAY_MS)}
        return {"retention.ms": str(min(self.retention_ms + window_additional_ms, _MAX_LONG))}

    def _of_the_users(self, made: object) -> StateStore:
        """Return the factory's store. Raises `TopologyError` if it does not fit the declaration."""
        if not isinstance(made, StateStore):
            raise TopologyError(f"The factory of store {self.name!r} made {shown(made)}: make a StateStore.")
        declared, actual = (self.name, self.persistent), (made.name, made.persistent)
        if actual != declared:
            raise TopologyError(
                f"The factory of store {self.name!r} made one of (name, persistent) {actual}, declared is {declared}: "
                "let both say the same."
            )
        kind = type(made)
        defined = kind.staged_changes is not StateStore.staged_changes and kind.restore is not StateStore.restore
        if self.logged and not defined:  # its changelog would stay empty, and a lost disk would be noticed too late
            raise TopologyError(
                f"Store {self.name!r} is logged, but {kind.__name__} does not define both `staged_changes` and "
                "`restore`: define them, or declare the store with logged=False."
            )
        return made

    def _own(self) -> TransactionalStore:
        name, persistent = self.name, self.persistent
        match self.kind:
            case "key_value":
                return stateline_store.KeyValueStore(name, persistent=persistent)
            case "timestamped_key_value":
                if not (self.ttl_ms or self.own_ttl):
                    return stateline_store.TimestampedKeyValueStore(name, persistent=persistent, headers=self.headers)
                return stateline_store.ExpiringKeyValueStore(
                    name, ttl_ms=self.ttl_ms, own_ttl=self.own_ttl, persistent=persistent, headers=self.headers
                )
            case "window" | "timestamped_window":
                window = stateline_store.TimestampedWindowStore if self.timestamped else stateline_store.WindowStore
                return window(
                    name,
                    retention_ms=self.retention_ms,
                    window_size_ms=self.window_size_ms,
                    retain_duplicates=self.retain_duplicates,
                    persistent=persistent,
                    headers=self.headers,
                )
            case "session" | "timestamped_session":
                session = stateline_store.TimestampedSessionStore if self.timestamped else stateline_store.SessionStore
                return session(name, retention_ms=self.retention_ms, persistent=persistent, headers=self.headers)
            case "versioned":
                return stateline_store.VersionedStore(
                    name, history_retention_ms=self.retention_ms, persistent=persistent
                )
            case "custom":
                raise AssertionError(f"Store {name!r} is of the user's own kind and has no factory.")


@dataclass(frozen=True, slots=True)
class GlobalTable:
    """A topic that every worker keeps whole, for lookups (Kafka Streams' `GlobalKTable`).

    `App.global_table` returns it, for `Stream.join` and `Stream.left_join`. Its `store` belongs to no task.
    """

    store: StoreDefinition


def changelog_name(application_id: str, store: str) -> str:
    """Return the name of a store's changelog, as in Kafka Streams. In topics: never change."""
    return f"{application_id}-{store}-changelog"


def topic_settings(whose: str, given: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a topic as texts. Raises `InvalidArgumentError` for a name or value that cannot be one."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{whose}: changelog settings {shown(given)}: give a dict, as {{'segment.ms': 60000}}."
        )
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise InvalidArgumentError(
                f"{whose}: changelog setting {name!r} = {shown(value)}: text, numbers, true and false are accepted."
            )
    return {name: as_text(value) for name, value in given.items()}
