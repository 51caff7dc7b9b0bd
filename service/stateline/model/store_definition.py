"""A store as an application declares it, before there is one of it per task. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

import stateline_store
from stateline.config.settings import as_text
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
"""A kind of store with or without timestamps (`Layout.declared_kind`), or a user's own."""

_KINDS = (
    stateline_store.KeyValueStore,
    stateline_store.WindowStore,
    stateline_store.SessionStore,
    stateline_store.VersionedStore,
)
COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
DAY_MS = 24 * 60 * 60 * 1000
"""Kafka Streams adds a day, for clocks that differ: to the retention of windows, where it is a setting
(windowstore.changelog.additional.retention.ms), and to the compaction lag of versions (VersionedChangelogTopicConfig),
where it is not."""
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """`source` is the topic of a table, None for other stores.

    `retention_ms` is of window, session and versioned stores (there the history), `window_size_ms` and
    `retain_duplicates` of window stores, `session_gap_ms` of sessions that an operator makes, `ttl_ms` of a timestamped
    key-value store whose entries expire (0: of none). `factory` makes a user's own store from its name. `is_operators`:
    an operator alone writes it. `changelog_overrides` are what `with_logging` was given. `headers`: each value has the
    headers of its record (KIP-1271).
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
    changelog_overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    headers: bool = False

    def __post_init__(self) -> None:
        check_serde(self.key)
        check_serde(self.value)
        for name in ("persistent", "logged", "headers"):
            if not isinstance(given := getattr(self, name), bool):
                raise InvalidArgumentError(f"Store {self.name!r}: {name}={shown(given)}: give True or False.")
        if self.headers and not self.timestamped:
            raise InvalidArgumentError(f"Store {self.name!r} is {self.kind}: only stores with timestamps have headers.")

    def with_logging(self, settings: Mapping[str, object]) -> StoreDefinition:
        """The same store, its changelog to be created with these settings of Kafka's topics, ``{"segment.ms": 60000}``:
        Kafka Streams' `withLoggingEnabled`. They come before `topic.*` and what Stateline sets itself. A changelog that
        is there keeps its own.

        Raises `InvalidArgumentError` for a table, whose topic is the user's, for values other than text, numbers, true
        or false, and as `deleting_policy` for a cleanup.policy by which the changelog would lose rows. A name that
        Kafka does not know is refused when the changelog is created.
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
        """The cleanup.policy by which its changelog, with these `topic.*`, would lose rows that last as long as the
        store does: one without compact, or one that also deletes, with nothing said of when. None when it keeps them.
        """
        if self.plain_kind in ("window", "session"):
            return None
        settings = {**defaults, **self.changelog_overrides}
        policy = settings.get("cleanup.policy", "compact")
        parts = policy.replace(" ", "").split(",")
        return policy if "compact" not in parts or ("delete" in parts and "retention.ms" not in settings) else None

    def with_logging_disabled(self) -> StoreDefinition:
        """The same store without a changelog (Kafka Streams' `withLoggingDisabled`): as with ``logged=False``. Raises
        `InvalidArgumentError` for a table."""
        if self.source is not None:
            raise InvalidArgumentError(
                f"with_logging_disabled of {self.name!r}: a table's topic, {self.source.name!r}, is what it is made of."
            )
        return replace(self, logged=False, changelog_overrides={})

    def build(self) -> StateStore:
        """A store of this kind, not yet opened. Raises `TopologyError` when a factory made something else."""
        return self._own() if self.factory is None else self._of_the_users(self.factory(self.name))

    def of_kind_made(self) -> StoreDefinition:
        """The same, and where its factory makes subclasses of a kind of Stateline's, of that kind: its rows are that
        kind's, and are read as such. Raises what the factory raises."""
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
        """Whether each value carries a timestamp in the store's own bytes (KIP-258's format)."""
        return is_timestamped(self.kind)

    @property
    def plain_kind(self) -> str:
        """The kind without its timestamps: as `StoreSchema.kind`."""
        return plain_kind(self.kind)

    @property
    def types(self) -> StoreTypes:
        """The types of its bytes. Its files store them, and each opening compares them."""
        gap_ms = self.session_gap_ms or None
        return StoreTypes(type_name(self.key), type_name(self.value), self.window_size_ms or None, gap_ms)

    @property
    def form(self) -> str:
        """The kind, and whether values have headers, as `Layout.form`."""
        return f"{self.kind}{' with headers' if self.headers else ''}"

    @property
    def description(self) -> str:
        """A description of its bytes. If it is equal in two processes, each can read the bytes of the other."""
        return f"{self.kind} with {self.types}{' and headers' if self.headers else ''}"

    @property
    def plain_description(self) -> str:
        """The same without its timestamps: equal where stores are made of the same changelog, and show each other's
        rows."""
        return f"{self.plain_kind} with {self.types}{' and headers' if self.headers else ''}"

    @property
    def key_value(self) -> bool:
        """Whether keys alone name the values: what key and range queries ask."""
        return self.kind in ("key_value", "timestamped_key_value")

    @property
    def external(self) -> str | None:
        """The id of the Kafka Streams application whose store it is; None of the application's own."""
        return None if self.source is None else self.source.external

    def changelog(self, application_id: str) -> str | None:
        """The topic that this store can be rebuilt from: a table's own topic, or a changelog; None without."""
        if self.source is not None:
            return self.source.name
        return changelog_name(application_id, self.name) if self.logged else None

    def changelog_settings(
        self, defaults: Mapping[str, str] = MappingProxyType({}), window_additional_ms: int = DAY_MS
    ) -> Mapping[str, str]:
        """The settings of that changelog when Stateline creates it, by Kafka Streams' rule: its own < `defaults`, those
        of the application's `topic.*` < those of `with_logging`. How long windows, sessions and versions are kept
        follows from the store, whatever `defaults` say, unless `with_logging` does.
        """
        return {**self._policy(), **defaults, **self._kept_for(window_additional_ms), **self.changelog_overrides}

    def _policy(self) -> Mapping[str, str]:
        if self.key_value or self.kind in ("versioned", "custom"):
            return COMPACTED
        # With duplicates no record is ever replaced (there: `WindowStoreBuilder`).
        policy = "delete" if self.retain_duplicates and not self.timestamped else "compact,delete"
        return {**COMPACTED, "cleanup.policy": policy}

    def _kept_for(self, window_additional_ms: int) -> Mapping[str, str]:
        if self.key_value or self.kind == "custom":
            return {}
        if self.kind == "versioned":
            return {"min.compaction.lag.ms": str(self.retention_ms + DAY_MS)}
        return {"retention.ms": str(min(self.retention_ms + window_additional_ms, _MAX_LONG))}

    def _of_the_users(self, made: object) -> StateStore:
        """Return the store of the user's factory, if it fits the declaration; else raise."""
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
                if self.ttl_ms:
                    return stateline_store.ExpiringKeyValueStore(
                        name, ttl_ms=self.ttl_ms, persistent=persistent, headers=self.headers
                    )
                return stateline_store.TimestampedKeyValueStore(name, persistent=persistent, headers=self.headers)
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
    """A topic that every worker has whole, for lookups (Kafka Streams' `GlobalKTable`).

    `App.global_table` returns it, for `Stream.join` and `Stream.left_join`. Its `store` is beside tasks, not in one.
    """

    store: StoreDefinition


def changelog_name(application_id: str, store: str) -> str:
    """Kafka Streams' name of a store's changelog. In topics: never change."""
    return f"{application_id}-{store}-changelog"


def topic_settings(whose: str, given: Mapping[str, object]) -> dict[str, str]:
    """Settings of a topic as the log takes them. Raises `InvalidArgumentError` for what cannot be one."""
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
