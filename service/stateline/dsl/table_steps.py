"""The steps of a `Table` that give a table again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from stateline import stores
from stateline.dsl.declarations import Declarations
from stateline.dsl.foreign_keys import join_by_foreign_key
from stateline.dsl.grouped_tables import GroupedTable
from stateline.dsl.joiners import Joiner, joiner_of
from stateline.dsl.kept_tables import ChangelogSettings, aggregated, kept_table, refuse_other_keys
from stateline.dsl.named_steps import NamedStep
from stateline.dsl.table_kinds import history_of, kept_rows
from stateline.dsl.wrong_kinds import wrong_kind
from stateline.model.declared_at import says_where
from stateline.model.function_checks import check_function
from stateline.model.nodes import OperatorNode, Root
from stateline.model.store_definition import StoreDefinition
from stateline.processing.function_results import refuse_unrun, written
from stateline.processing.operators import Joined, JoinSide, LatestVersions, MapTable, TransformTable
from stateline.serde.change import ChangeSerde
from stateline.serde.plain import Serde
from stateline.stores import timestamped_key_value
from stateline_store import TopologyError

if TYPE_CHECKING:
    from stateline.processing.operators.joins import JoinKind

KeyValueFunction = Callable[[Any, Any], Any]


@says_where
class TableSteps(NamedStep):
    """Values by key in a store, and the steps that make other tables of them."""

    def __init__(self, declarations: Declarations, node: OperatorNode | Root, store: StoreDefinition) -> None:
        self._declarations, self._node = declarations, node
        self.store = store

    def filter(
        self,
        predicate: Callable[[Any, Any], object],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Keep the keys for which the predicate is true of (key, value)."""
        return self._filtered("filter", predicate, True, store, persistent, changelog)

    def filter_not(
        self,
        predicate: Callable[[Any, Any], object],
        store: str | None = None,
        *,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Drop the keys for which the predicate is true of (key, value)."""
        return self._filtered("filter_not", predicate, False, store, persistent, changelog)

    def map_values(
        self,
        mapper: Callable[[Any, Any], Any],
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Replace each value with what the function returns for (key, value), of the type `value` (by default the same
        as before). A result of None deletes the key."""
        check_function("map_values", mapper, "key", "value", role="mapper")
        store = self._declarations.store_name(store, "KTABLE-MAPVALUES")
        serde = self._declarations.in_store(store, value or self.store.value)
        return self._mapped(
            "map_values", lambda k, v, data: written(serde, mapper(k, v)), store, serde, persistent, changelog
        )

    def transform_values(
        self,
        function: Callable[..., Any],
        store: str | None = None,
        *,
        stores: Sequence[StoreDefinition] = (),
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Replace each value with what a function returns that reads and writes stores (Kafka Streams'
        `KTable.transformValues`). It gets an `InputRecord`, then one view for each of `stores`, then a `context` if it
        has that parameter. It is called for deleted keys, too: their value is None. A result of None deletes the key.

        With stores, it sees each change of a key, also within one slice of input. If it fails, its writes are undone.
        """
        self._refuse_windows("transform_values")
        given, _ = self._declarations.arguments("transform_values", function, "record", stores)
        store = self._declarations.store_name(store, "KTABLE-TRANSFORMVALUES")
        serde, name = self._declarations.in_store(store, value or self.store.value), f"transform_values {store}"
        make = partial(TransformTable, name, function, given, self.store, serde)
        node = OperatorNode(name, make, given, on_changes=True, in_order=bool(given), shares_stores=True)
        definition = timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
        return kept_table(type(self), self._declarations, [self._node.then(node)], definition, changelog)

    def group_by(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any] | None],
        *,
        name: str,
        key: Serde | None = None,
        value: Serde | None = None,
        partitions: int | None = None,
    ) -> GroupedTable[Self]:
        """Group the rows by another key: the mapper returns the group's key and the row's value in the group from
        (key, value). `key` and `value` are their types, by default this table's. Rows for which it returns None, or
        None as key or value, are in no group. It must return the same for the same row each time.

        Changes go through the topic ``<application.id>-<name>-repartition``, as Kafka Streams writes it. By default it
        has as many partitions as the input."""
        self._refuse_windows("group_by", versions=True)
        rows = ChangeSerde(value or self.store.value)
        topic = self._declarations.repartition(name, key or self.store.key, rows, partitions=partitions)
        return GroupedTable(
            self._declarations, self._of_latest(), self.store, mapper, topic, partial(aggregated, type(self))
        )

    def join(
        self,
        other: Self,
        joiner: Joiner,
        store: str | None = None,
        *,
        on: KeyValueFunction | None = None,
        name: str | None = None,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Join the keys that both tables have. `joiner` gets this table's value and the other's. If it has three
        parameters, the key comes first. The result has the type `value`, by default this table's.

        Raises `TopologyError` unless both keep the newest value of each key, with keys of one type. The worker refuses
        to start unless the input topics have equal partition counts.

        **By foreign key.** `on` returns the other table's key from (key, value), None for no key. It must return the
        same for the same row each time. The result has this table's keys, and changes with either table. `name` is that
        of the two topics between the tables, ``<application.id>-<name>-subscription-registration-topic`` and
        ``…-subscription-response-topic``, and of the store ``<name>-subscription-store``. `persistent` is of this
        store, too. The tables may have keys of other types, and topics of other partition counts.
        """
        return self._joined("inner", other, joiner, store, value, persistent, changelog, on, name)

    def left_join(
        self,
        other: Self,
        joiner: Joiner,
        store: str | None = None,
        *,
        on: KeyValueFunction | None = None,
        name: str | None = None,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Join all keys of this table: `joiner` gets None for a value that the other table lacks. Else like `join`."""
        return self._joined("left", other, joiner, store, value, persistent, changelog, on, name)

    def outer_join(
        self,
        other: Self,
        joiner: Joiner,
        store: str | None = None,
        *,
        value: Serde | None = None,
        persistent: bool = True,
        changelog: ChangelogSettings = None,
    ) -> Self:
        """Join the keys of both tables: `joiner` gets None for a value that one of them lacks. Else like `join`."""
        return self._joined("outer", other, joiner, store, value, persistent, changelog)

    def _filtered(
        self,
        what: str,
        predicate: Callable[[Any, Any], object],
        wanted: bool,
        store: str | None,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Self:
        check_function(what, predicate, "key", "value", role="predicate")
        store = self._declarations.store_name(store, "KTABLE-FILTER")

        def kept(key: Any, value: Any, data: bytes) -> bytes | None:
            return data if bool(refuse_unrun(predicate(key, value))) is wanted else None

        return self._mapped(what, kept, store, self.store.value, persistent, changelog)

    def _mapped(
        self,
        what: str,
        function: Callable[[Any, Any, bytes], bytes | None],
        store: str,
        value: Serde,
        persistent: bool,
        changelog: ChangelogSettings,
    ) -> Self:
        self._refuse_windows(what, versions=True)
        name = f"{what} {store}"
        make = partial(MapTable, name, function, self.store.key, self.store.value)
        mapped = self._node.then(OperatorNode(name, make, on_changes=True))
        definition = kept_rows(store, self.store.key, value, history_of(self.store), persistent=persistent)
        return kept_table(type(self), self._declarations, [mapped], definition, changelog)

    def _joined(
        self,
        kind: JoinKind,
        other: Self,
        joiner: Joiner,
        store: str | None,
        value: Serde | None,
        persistent: bool,
        changelog: ChangelogSettings,
        on: KeyValueFunction | None = None,
        join_name: str | None = None,
    ) -> Self:
        what = "join" if kind == "inner" else f"{kind}_join"
        if not isinstance(other, TableSteps):
            raise wrong_kind(what, other, "table")
        self._declarations.refuse_other_application(what, other._declarations)
        self._refuse_windows("join", versions=True)
        other._refuse_windows("join", versions=True)
        called = joiner_of(what, joiner, self.store.key, "other_value")
        if on is not None:
            check_function(what, on, "key", "value", role="on")
            store = self._declarations.store_name(store, "KTABLE-FK-JOIN-OUTPUT")
            serde = self._declarations.in_store(store, value or self.store.value)
            both = (self._of_latest(), self.store), (other._of_latest(), other.store)
            node = join_by_foreign_key(
                self._declarations, what, both, on, called, serde, join_name, is_left=kind == "left",
                persistent=persistent,
            )  # fmt: skip
            definition = stores.timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
            return kept_table(type(self), self._declarations, [node], definition, changelog)
        if join_name is not None:
            raise TopologyError(f"{what}: name={join_name!r} is for a join by foreign key. Give `on`, too.")
        refuse_other_keys(f"Table {self.store.name!r}", self.store.key, other.store)
        store = self._declarations.store_name(store, "KTABLE-MERGE")
        name, serde = f"join {store}", self._declarations.in_store(store, value or self.store.value)
        joined = Joined(name, kind, called, self.store.value, other.store.value, serde, store)
        sides = [
            one._of_latest().then(
                OperatorNode(
                    name,
                    partial(JoinSide, joined, is_left, another.store.name),
                    (another.store,),
                    on_changes=True,
                    in_order=kind != "inner",
                )
            )
            for is_left, one, another in ((True, self, other), (False, other, self))
        ]
        definition = stores.timestamped_key_value(store, key=self.store.key, value=serde, persistent=persistent)
        return kept_table(type(self), self._declarations, sides, definition, changelog)

    def _of_latest(self) -> OperatorNode | Root:
        """Return what gives the changes of the newest values."""
        if self.store.kind != "versioned":
            return self._node
        return self._node.then(OperatorNode(f"latest of {self.store.name}", LatestVersions))

    def _refuse_windows(self, what: str, *, versions: bool = False) -> None:
        if self.store.kind != "timestamped_key_value" and not (versions and self.store.kind == "versioned"):
            raise TopologyError(
                f"{what}: {self.store.name!r} is a {self.store.plain_kind} store. Only tables of the newest value "
                "of each key can be used here. Use .to_stream()."
            )
