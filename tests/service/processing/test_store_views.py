"""Views of window, session and versioned stores: what a processor reads and writes of them. RocksDB and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from stateline import serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.model.topic import Topic
from stateline.processing.store_views import (
    AnyView,
    SessionView,
    StoreView,
    Timestamped,
    Version,
    VersionedView,
    Window,
    WindowView,
    view_of,
)
from stateline.serde.plain import JsonSerde
from stateline_store import InvalidArgumentError, StoreClosedError, StoreContext, TopologyError, TransactionalStore
from support.apps.own_stores import OwnStore

SERDES: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
SIZE, RETENTION = 60_000, 300_000
KEPT: dict[str, Any] = {"retention": timedelta(milliseconds=RETENTION)}
SIZED: dict[str, Any] = KEPT | {"size": timedelta(milliseconds=SIZE)}
MAX_BYTES = 100
View = TypeVar("View", StoreView, WindowView, SessionView, VersionedView)


class Opened:
    """Opens stores of declarations and gives their views."""

    def __init__(self, directory: Path, persistent: bool) -> None:
        self.persistent = persistent
        self.stores: dict[str, TransactionalStore] = {}
        self._directory = directory
        self.closing = ExitStack()

    def view(self, of: type[View], make: Callable[..., StoreDefinition], **changed: Any) -> View:
        definition = make(f"s{len(self.stores)}", **{**SERDES, "persistent": self.persistent, **changed})
        return self.view_of(of, definition)

    def view_of(self, of: type[View], definition: StoreDefinition) -> View:
        store = definition.build()
        assert isinstance(store, TransactionalStore)
        store.init(StoreContext("0_0", self._directory))
        self.closing.callback(store.close)
        self.stores[definition.name] = store
        view = view_of(definition, store, MAX_BYTES)
        assert isinstance(view, of)
        view.record_starts(7_000)
        return view

    def dropped(self, view: AnyView) -> int:
        return int(cast(Any, self.stores[view.name]).dropped_records)  # of every kind but key-value


@pytest.fixture(params=["rocksdb", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path, request.param == "rocksdb")
    with made.closing:
        yield made


class TestWindows:
    @pytest.fixture(params=[False, True], ids=["plain", "timestamped"])
    def view(self, request: pytest.FixtureRequest, opened: Opened) -> WindowView:
        return opened.view(WindowView, stores.window, timestamped=request.param, **SIZED)

    def test_values_come_back_typed_by_key_and_start(self, view: WindowView) -> None:
        view.put("a", {"n": 1}, 0)
        view.put("a", [2], SIZE)
        view.put("b", "3", SIZE)
        view.put("c", 4, SIZE)
        view.put("c", None, SIZE)
        assert view.get("a", 0) == {"n": 1}
        assert view.get("a", 1) is None
        assert view.get("c", SIZE) is None
        assert list(view.fetch("a", 0, SIZE)) == [(0, {"n": 1}), (SIZE, [2])]
        assert list(view.fetch("a", 1, SIZE, reverse=True)) == [(SIZE, [2])]
        later = [Window("a", SIZE, 2 * SIZE, [2]), Window("b", SIZE, 2 * SIZE, "3")]
        assert list(view.fetch_all(1, SIZE)) == later
        assert list(view.all()) == [Window("a", 0, SIZE, {"n": 1}), *later]
        assert list(view.all(reverse=True)) == [*later[::-1], Window("a", 0, SIZE, {"n": 1})]

    def test_a_window_that_is_too_late_is_dropped_counted_and_out_of_sight(
        self, opened: Opened, view: WindowView
    ) -> None:
        view.put("a", 1, 0)
        view.put("a", 2, 10 * SIZE)
        view.put("a", 3, 0)
        assert opened.dropped(view) == 1
        assert list(view.all()) == [Window("a", 10 * SIZE, 11 * SIZE, 2)]
        assert view.get("a", 0) is None

    @pytest.mark.parametrize("start", [-1, "0", 0.5, None, 1 << 63])
    def test_what_is_no_start_is_refused_and_nothing_is_kept(self, view: WindowView, start: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="its start in ms"):
            view.put("a", 1, start)
        assert list(view.all()) == []


def test_a_windows_value_is_stamped_with_its_records_time_unless_another_is_given(opened: Opened) -> None:
    view = opened.view(WindowView, stores.window, timestamped=True, **SIZED)
    view.put("a", "of the record", 0)
    view.put("a", "of its own", SIZE, timestamp_ms=5)
    assert view.get_with_timestamp("a", 0) == Timestamped("of the record", 7_000)
    assert view.get_with_timestamp("a", 1) is None
    assert list(view.fetch_with_timestamp("a", 0, SIZE, reverse=True)) == [
        (SIZE, Timestamped("of its own", 5)),
        (0, Timestamped("of the record", 7_000)),
    ]


def test_duplicates_are_all_kept_in_their_order_and_none_can_be_deleted(opened: Opened) -> None:
    view = opened.view(WindowView, stores.window, retain_duplicates=True, **SIZED)
    for value in (1, 2, None, 2):
        view.put("a", value, 0)
    assert list(view.fetch("a", 0, 0)) == [(0, 1), (0, 2), (0, 2)]


class TestSessions:
    @pytest.fixture(params=[False, True], ids=["plain", "timestamped"])
    def view(self, request: pytest.FixtureRequest, opened: Opened) -> SessionView:
        return opened.view(SessionView, stores.session, timestamped=request.param, **KEPT)

    def test_aggregates_come_back_typed_by_key_start_and_end(self, view: SessionView) -> None:
        view.put("a", 0, 10, {"n": 1})
        view.put("a", 50, 50, {"n": 2})
        view.put("b", 20, 60, {"n": 3})
        first, second = Window("a", 0, 10, {"n": 1}), Window("a", 50, 50, {"n": 2})
        assert view.get("a", 0, 10) == {"n": 1}
        assert view.get("a", 0, 11) is None
        assert list(view.find_sessions("a", 11, 50)) == [second]
        assert list(view.find_sessions("a", 10, 49)) == [first]
        assert list(view.fetch("a")) == [first, second]
        assert list(view.fetch("a", reverse=True)) == list(view.find_sessions("a", 0, 50, reverse=True))
        assert list(view.all()) == [first, second, Window("b", 20, 60, {"n": 3})]

    def test_a_session_goes_by_remove_and_by_a_value_of_none(self, view: SessionView) -> None:
        view.put("a", 0, 10, 1)
        view.put("a", 50, 60, 2)
        view.remove("a", 0, 10)
        view.put("a", 50, 60, None)
        view.remove("a", 1, 2)
        assert list(view.all()) == []

    def test_a_put_that_is_too_late_is_counted_and_a_removal_loses_nothing(
        self, opened: Opened, view: SessionView
    ) -> None:
        view.put("a", 0, 10 * SIZE, 1)
        view.put("a", 0, 10, 2)
        view.remove("a", 0, 10)
        assert opened.dropped(view) == 1
        assert list(view.all()) == [Window("a", 0, 10 * SIZE, 1)]

    def test_a_session_that_ends_before_it_starts_is_refused(self, view: SessionView) -> None:
        with pytest.raises(InvalidArgumentError, match="its start and its end"):
            view.put("a", 10, 9, 1)
        with pytest.raises(InvalidArgumentError, match="its start and its end"):
            view.remove("a", 10, 9)


def test_an_aggregate_is_stamped_with_its_records_time_unless_another_is_given(opened: Opened) -> None:
    view = opened.view(SessionView, stores.session, timestamped=True, **KEPT)
    view.put("a", 0, 1, "of the record")
    view.put("a", 0, 2, "of its own", timestamp_ms=5)
    assert view.get_with_timestamp("a", 0, 1) == Timestamped("of the record", 7_000)
    assert view.get_with_timestamp("a", 0, 2) == Timestamped("of its own", 5)
    assert view.get_with_timestamp("a", 0, 3) is None


class TestVersions:
    @pytest.fixture
    def view(self, opened: Opened) -> VersionedView:
        return opened.view(VersionedView, stores.versioned, history=timedelta(milliseconds=RETENTION))

    def test_versions_come_back_typed_with_their_time(self, view: VersionedView) -> None:
        view.put("a", {"n": 1}, timestamp_ms=1_000)
        view.put("a", {"n": 3}, timestamp_ms=3_000)
        view.put("a", {"n": 2}, timestamp_ms=2_000)
        one, two = Version({"n": 1}, 1_000, 2_000), Version({"n": 2}, 2_000, 3_000)
        three = Version({"n": 3}, 3_000, None)
        assert view.get("a") == three
        assert view.get("a", as_of=2_999) == two
        assert view.get("a", as_of=999) is None
        assert view.get("b") is None
        assert list(view.versions("a")) == [three, two, one]
        assert list(view.versions("a", 1_000, 2_000, ascending=True)) == [one, two]

    def test_a_version_begins_with_its_record_unless_another_time_is_given(self, view: VersionedView) -> None:
        view.put("a", "of the record")
        view.delete("a", timestamp_ms=9_000)
        view.put("b", "gone")
        view.delete("b")
        assert view.get("a") is None
        assert list(view.versions("a")) == [Version("of the record", 7_000, 9_000)]
        assert list(view.versions("b")) == []

    def test_a_version_older_than_the_history_is_dropped_and_counted(self, opened: Opened, view: VersionedView) -> None:
        view.put("a", 1, timestamp_ms=RETENTION + 2_000)
        view.put("a", 2, timestamp_ms=2_000)
        view.put("a", 3, timestamp_ms=1_999)
        assert opened.dropped(view) == 1
        assert [version.value for version in view.versions("a", ascending=True)] == [2, 1]


Put = Callable[[Any, Any], None]
Reads = Callable[[], Iterator[object]]


def each_kind(opened: Opened, **changed: Any) -> dict[str, tuple[AnyView, Put, list[Reads]]]:
    """A view of each kind, one way to write a key and a value into it, and its iterators of key `a`."""
    by_key = opened.view(StoreView, stores.timestamped_key_value, **changed)
    windows = opened.view(WindowView, stores.window, timestamped=True, **SIZED, **changed)
    sessions = opened.view(SessionView, stores.session, timestamped=True, **KEPT, **changed)
    versions = opened.view(VersionedView, stores.versioned, history=timedelta(minutes=5), **changed)
    found = iter(range(1_000, 2_000))
    return {
        "key-value": (by_key, by_key.put, [by_key.range]),
        "windows": (
            windows,
            lambda key, value: windows.put(key, value, next(found)),
            [
                lambda: windows.fetch("a", 0, SIZE),
                lambda: windows.fetch_with_timestamp("a", 0, SIZE),
                lambda: windows.fetch_all(0, SIZE),
                windows.all,
            ],
        ),
        "sessions": (
            sessions,
            lambda key, value: sessions.put(key, 0, next(found), value),
            [lambda: sessions.find_sessions("a", 0, SIZE), lambda: sessions.fetch("a"), sessions.all],
        ),
        "versions": (
            versions,
            lambda key, value: versions.put(key, value, timestamp_ms=next(found)),
            [lambda: versions.versions("a")],
        ),
    }


KINDS = ["key-value", "windows", "sessions", "versions"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_is_a_snapshot_of_the_moment_of_the_call(opened: Opened, kind: str) -> None:
    _, put, reads = each_kind(opened)[kind]
    put("a", "old")
    made = [read() for read in reads]
    put("a", "new")
    put("b", "new")
    for rows in made:
        assert "new" not in repr(list(rows))
    assert all("new" in repr(list(read())) for read in reads)


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_iterator_has_no_more_rows(opened: Opened, kind: str) -> None:
    _, put, reads = each_kind(opened)[kind]
    put("a", 1)
    for read in reads:
        with cast(Any, read()) as rows:
            pass
        assert list(rows) == []


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_of_another_type_are_refused_with_what_they_are(opened: Opened, kind: str) -> None:
    _, put, reads = each_kind(opened)[kind]
    with pytest.raises(InvalidArgumentError, match="5 is not a string"):
        put(5, 1)
    with pytest.raises(InvalidArgumentError, match="cannot be written as JSON"):
        put("a", {1, 2})
    assert not any(list(read()) for read in reads)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_changelog_would_refuse_is_refused_at_the_put_and_an_unlogged_store_takes_it(
    opened: Opened, kind: str
) -> None:
    _, put, reads = each_kind(opened)[kind]
    put("a", "x" * (MAX_BYTES - 3))  # with its quotes and the key: as much as there may be
    with pytest.raises(InvalidArgumentError, match=r"Key b'a' and its value have 101 bytes, but .* takes 100"):
        put("a", "x" * (MAX_BYTES - 2))
    assert all(len(list(read())) == 1 for read in reads)
    _, put, reads = each_kind(opened, logged=False)[kind]
    put("a", "x" * MAX_BYTES)
    assert all(len(list(read())) == 1 for read in reads)


class WritesText(JsonSerde):
    """Reads JSON and writes text that need not be any: as if the store had been written with another serde."""

    def serialize(self, value: Any) -> bytes:
        return serdes.string.serialize(value)


@pytest.mark.parametrize("kind", KINDS)
def test_stored_bytes_that_the_serde_cannot_read_are_an_error_and_not_a_missing_row(opened: Opened, kind: str) -> None:
    _, put, reads = each_kind(opened, value=WritesText())[kind]
    put("a", "no JSON")
    for read in reads:
        with pytest.raises(InvalidArgumentError, match="b'no JSON' is not JSON"):
            list(read())


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_store_refuses_reads_and_writes(opened: Opened, kind: str) -> None:
    view, put, reads = each_kind(opened)[kind]
    opened.stores[view.name].close()
    with pytest.raises(StoreClosedError):
        put("a", 1)
    for read in reads:
        with pytest.raises(StoreClosedError):
            list(read())


def test_a_versioned_table_can_be_read_and_not_written(opened: Opened) -> None:
    topic = Topic("prices", serdes.string, serdes.json)
    definition = StoreDefinition(
        "prices",
        "versioned",
        topic.key,
        topic.value,
        persistent=opened.persistent,
        source=topic,
        retention_ms=RETENTION,
    )
    view = opened.view_of(VersionedView, definition)
    with pytest.raises(TopologyError, match="table of topic 'prices'"):
        view.put("a", 1)
    with pytest.raises(TopologyError, match="table of topic 'prices'"):
        view.delete("a")
    opened.stores["prices"].restore([(b"a", b"1", 1_000)])
    assert view.get("a") == Version(1, 1_000, None)


def test_stores_without_timestamps_say_how_to_get_them(opened: Opened) -> None:
    windows = opened.view(WindowView, stores.window, **SIZED)
    sessions = opened.view(SessionView, stores.session, **KEPT)
    with pytest.raises(TopologyError, match=r"stores\.window\(…, timestamped=True\)"):
        windows.get_with_timestamp("a", 0)
    with pytest.raises(TopologyError, match=r"stores\.window\(…, timestamped=True\)"):
        windows.fetch_with_timestamp("a", 0, 1)
    with pytest.raises(TopologyError, match=r"stores\.session\(…, timestamped=True\)"):
        sessions.get_with_timestamp("a", 0, 1)


def test_put_if_absent_keeps_what_is_there_and_returns_it(opened: Opened) -> None:
    view = opened.view(StoreView, stores.timestamped_key_value)
    assert view.put_if_absent("a", 1) is None
    assert view.put_if_absent("a", 2, timestamp_ms=5) == 1
    assert view.get_with_timestamp("a") == Timestamped(1, 7_000)


def test_a_store_of_ones_own_has_no_view_even_if_it_is_of_a_known_kind(tmp_path: Path) -> None:
    own = stores.custom("own", lambda name: OwnStore(name, transactional=True, manages_offsets=True), **SERDES)
    tuned = stores.custom("tuned", lambda name: stores.key_value(name, **SERDES).build(), **SERDES)
    assert view_of(own, own.build(), MAX_BYTES) is None
    assert view_of(tuned, tuned.build(), MAX_BYTES) is None
