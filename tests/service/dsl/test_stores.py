"""Typed views of stores: what a processor reads, writes, and may not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline import serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.store_views import StoreView, Timestamped
from stateline_store import InvalidArgumentError, KeyValueStore, StoreContext, TopologyError

KINDS = [stores.key_value, stores.timestamped_key_value]


def built(definition: StoreDefinition) -> KeyValueStore:
    store = definition.build()
    assert isinstance(store, KeyValueStore)
    return store


@pytest.fixture(params=KINDS, ids=["plain", "timestamped"])
def definition(request: pytest.FixtureRequest) -> StoreDefinition:
    made = request.param("s", key=serdes.int32, value=serdes.json, persistent=False)
    assert isinstance(made, StoreDefinition)
    return made


@pytest.fixture
def store(definition: StoreDefinition, tmp_path: Path) -> Iterator[KeyValueStore]:
    store = built(definition)
    store.init(StoreContext("0_0", tmp_path))
    yield store
    store.close()


def test_values_come_back_as_they_were_put_in_the_order_of_their_keys(
    definition: StoreDefinition, store: KeyValueStore
) -> None:
    view = StoreView(definition, store)
    view.put(2, {"two": 2})
    view.put(1, [1])
    view.put(3, "three")
    view.delete(3)
    assert view.get(2) == {"two": 2}
    assert view.get(3) is None
    assert list(view.range()) == [(1, [1]), (2, {"two": 2})]
    assert list(view.range(2, reverse=True)) == [(2, {"two": 2})]


def test_undo_takes_back_what_a_record_wrote_and_nothing_else(
    definition: StoreDefinition, store: KeyValueStore
) -> None:
    view = StoreView(definition, store)
    view.record_starts(10)
    view.put(1, "kept")
    view.put(2, "kept")
    store.savepoint()
    view.record_starts(20)
    view.put(1, "changed")
    view.put(1, "changed again")
    view.delete(2)
    view.put(3, "new")
    store.rollback_to_savepoint()
    assert list(view.range()) == [(1, "kept"), (2, "kept")]
    if definition.timestamped:
        assert view.get_with_timestamp(1) == Timestamped("kept", 10)


def test_a_value_is_stamped_with_its_records_time_unless_another_is_given(tmp_path: Path) -> None:
    definition = stores.timestamped_key_value("s", key=serdes.string, value=serdes.int64, persistent=False)
    store = built(definition)
    store.init(StoreContext("0_0", tmp_path))
    view = StoreView(definition, store)
    view.record_starts(77)
    view.put("a", 1)
    view.put("b", 2, timestamp_ms=5)
    assert view.get_with_timestamp("a") == Timestamped(1, 77)
    assert view.get_with_timestamp("b") == Timestamped(2, 5)
    assert view.get_with_timestamp("c") is None


def test_a_store_without_timestamps_says_how_to_get_them(tmp_path: Path) -> None:
    definition = stores.key_value("s", key=serdes.string, value=serdes.int64, persistent=False)
    store = built(definition)
    store.init(StoreContext("0_0", tmp_path))
    with pytest.raises(TopologyError, match="timestamped_key_value"):
        StoreView(definition, store).get_with_timestamp("a")


def test_a_table_is_read_only_for_processors(tmp_path: Path) -> None:
    source = Topic("t", serdes.string, serdes.json)
    definition = StoreDefinition(
        "t", "timestamped_key_value", source.key, source.value, persistent=False, source=source
    )
    store = built(definition)
    store.init(StoreContext("0_0", tmp_path))
    with pytest.raises(TopologyError, match="table of topic 't'"):
        StoreView(definition, store).put("a", 1)


def test_a_key_of_another_type_is_refused_with_its_value(definition: StoreDefinition, store: KeyValueStore) -> None:
    with pytest.raises(InvalidArgumentError, match="'one'"):
        StoreView(definition, store).put("one", 1)
