"""Stores of one's own over HTTP: subclasses of a kind are asked as that kind is, others by their method `query`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from pyarrow import ipc

from stateline import App, serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.testing import Record, TestDriver
from stateline.worker import InputRecord
from stateline_store import (
    Change,
    InvalidArgumentError,
    IsolationLevel,
    KeyValueStore,
    SessionStore,
    StateStore,
    StoreContext,
    TimestampedKeyValueStore,
    TimestampedWindowStore,
    TopicPartition,
    VersionedStore,
    Windowed,
)
from stateline_store.scan import EVERY_KEY

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Summed(KeyValueStore):
    """Adds what is put to what was there."""

    def add(self, key: bytes, number: int) -> None:
        self.put(key, str(int(self.get(key) or 0) + number).encode())


class Stamped(TimestampedKeyValueStore):
    def keep(self, key: bytes, value: bytes, at: int) -> None:
        self.put_with_timestamp(key, value, at)


class Minutes(TimestampedWindowStore):
    def __init__(self, name: str, persistent: bool) -> None:
        super().__init__(name, retention_ms=HOUR_MS, window_size_ms=MINUTE_MS, persistent=persistent)

    def keep(self, key: bytes, value: bytes, at: int) -> None:
        self.put_with_timestamp(key, value, at, at - at % MINUTE_MS)


class Visits(SessionStore):
    def keep(self, key: bytes, value: bytes, at: int) -> None:
        self.put(Windowed(key, at, at), value)


class Versions(VersionedStore):
    def keep(self, key: bytes, value: bytes, at: int) -> None:
        self.put(key, value, at)


class VisitorsKept(StateStore):
    """Who was on which page, in memory."""

    persistent = False
    transactional = True
    is_open = False
    name = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: set[tuple[str, str]] = set()
        self.staged: set[tuple[str, str]] = set()

    def init(self, context: StoreContext) -> None:
        self.is_open = True

    def close(self) -> None:
        self.seen, self.staged, self.is_open = set(), set(), False

    def add(self, page: str, visitor: str) -> None:
        self.staged.add((page, visitor))

    def staged_changes(self) -> Iterable[Change]:
        return [Change(f"{page}/{who}".encode(), b"", None) for page, who in sorted(self.staged)]

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        for key, _, _ in changes:
            page, _, who = key.decode().partition("/")
            self.staged.add((page, who))

    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        self.seen |= self.staged
        self.staged = set()


Factory = Callable[[str], StateStore]


def keeping(factory: Factory, *, persistent: bool = True) -> App:
    app = App("own")
    own = app.store(stores.custom("own", factory, key=serdes.string, value=serdes.string, persistent=persistent))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[own])
    def keep(record: InputRecord, own: Any) -> None:
        key, value, at = record.key.encode(), record.value.encode(), record.timestamp_ms
        own.add(key, int(value)) if isinstance(own, Summed) else own.keep(key, value, at)

    return app


def asked(driver: TestDriver, path: str, status: int = 200, **parameters: Any) -> Any:
    answer = driver.client.get(f"/v1/stores/own{path}", params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


KINDS: dict[str, Callable[[bool], Factory]] = {
    "key_value": lambda persistent: lambda name: Summed(name, persistent=persistent),
    "timestamped_key_value": lambda persistent: lambda name: Stamped(name, persistent=persistent),
    "timestamped_window": lambda persistent: lambda name: Minutes(name, persistent),
    "session": lambda persistent: lambda name: Visits(name, retention_ms=HOUR_MS, persistent=persistent),
    "versioned": lambda persistent: lambda name: Versions(name, history_retention_ms=HOUR_MS, persistent=persistent),
}


@pytest.mark.parametrize("persistent", [True, False], ids=["on disk", "in memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_of_a_kind_answers_what_that_kind_answers_at_both_levels(kind: str, persistent: bool) -> None:
    app = keeping(KINDS[kind](persistent), persistent=persistent)
    with TestDriver(app, partitions={"in": 2}) as driver:
        driver.pipe_all("in", [Record(f"k{n}", str(n), MINUTE_MS + n) for n in range(6)])
        driver.autocommit = False
        driver.pipe("in", "k1", "9", timestamp_ms=MINUTE_MS + 9)
        described = asked(driver, "")
        assert (described["kind"], described["persistent"]) == (kind, persistent)
        for level, newest in (("read_committed", "1"), ("read_uncommitted", "10" if kind == "key_value" else "9")):
            of_key = {"timestamped_window": "/windows", "session": "/sessions"}.get(kind, "")
            found = asked(driver, f"/keys/k1{of_key}", isolation_level=level)
            values = [entry["value"] for entry in found["entries"]] if of_key else [found["value"]]
            assert values[-1] == newest
            of_all = of_key or "/range"
            assert len({e["key"] for e in asked(driver, of_all, isolation_level=level)["entries"]}) == 6
        if kind == "timestamped_window":
            (window,) = asked(driver, "/keys/k2/windows")["entries"]
            assert (window["start"], window["end"], window["timestamp"]) == (MINUTE_MS, 2 * MINUTE_MS, MINUTE_MS + 2)


@pytest.mark.parametrize("kind", ["key_value", "timestamped_key_value"])
def test_it_is_in_snapshots_and_has_a_change_feed(kind: str) -> None:
    with TestDriver(keeping(KINDS[kind](True))) as driver:
        driver.pipe_all("in", [Record(f"k{n}", str(n), n) for n in range(6)])
        made = driver.client.post("/v1/snapshots", json={"stores": ["own"]})
        assert made.status_code == 201, made.text
        part = driver.client.get(f"/v1/snapshots/{made.json()['id']}/stores/own/partitions/0")
        assert ipc.open_stream(part.content).read_all().column("value").to_pylist() == [str(n) for n in range(6)]
        assert driver.client.get("/v1/stores/own/changes/offsets?from=earliest").status_code == 200


class Visitors(VisitorsKept):
    """Answers who was on a page."""

    def query(self, query: Any, isolation_level: IsolationLevel) -> Any:
        if not isinstance(query, dict) or not isinstance(query.get("page"), str):
            raise InvalidArgumentError(f"{query!r} names no page.")
        if query["page"] == "broken":
            raise RuntimeError("a secret")
        if query["page"] == "set":
            return {1}
        if query["page"] == "mean":
            return {"visitors": [], "mean": math.nan}
        pages = self.seen if isolation_level is IsolationLevel.READ_COMMITTED else self.seen | self.staged
        return {"visitors": sorted(who for page, who in pages if page == query["page"])}


class Unasked(VisitorsKept):
    """Has no `query`."""


class Direct(Visitors):
    transactional = False


def custom(driver: TestDriver, query: Any, status: int = 200, **more: Any) -> Any:
    answer = driver.client.post("/v1/stores/own/query", json={"type": "custom", "query": query, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def visiting(kind: type[VisitorsKept]) -> TestDriver:
    app = App("own")
    own = app.store(stores.custom("own", kind, key=serdes.string, value=serdes.bytes, persistent=False))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[own])
    def visit(record: InputRecord, own: Any) -> None:
        own.add(record.key, record.value)

    return TestDriver(app, partitions={"in": 2})


def test_another_kind_answers_by_its_method_query_in_each_partition_at_both_levels() -> None:
    with visiting(Visitors) as driver:
        driver.pipe_all("in", [Record("a", who, partition=n) for n, who in enumerate(("x", "y"))])
        driver.autocommit = False
        driver.pipe("in", "a", "z", partition=1)
        asked_for = {"page": "a"}
        committed = custom(driver, asked_for, isolation_level="read_committed")
        assert committed["results"] == {"0": {"visitors": ["x"]}, "1": {"visitors": ["y"]}}
        assert committed["partitions"]["1"]["served_by"] == "active"
        uncommitted = custom(driver, asked_for, isolation_level="read_uncommitted")
        assert uncommitted["results"]["1"] == {"visitors": ["y", "z"]}
        assert custom(driver, asked_for, partition=0)["results"] == {"0": {"visitors": ["x"]}}


def test_what_it_cannot_answer_is_said_and_the_worker_goes_on() -> None:
    with visiting(Visitors) as driver:
        driver.pipe("in", "a", "x")
        assert custom(driver, ["no page"], 422)["reason"] == "INVALID_ARGUMENT"
        failed = custom(driver, {"page": "broken"}, 500)
        assert (failed["reason"], "a secret" in failed["detail"]) == ("STORE_EXCEPTION", False)
        assert "RuntimeError" in failed["detail"]
        assert "no JSON" in custom(driver, {"page": "set"}, 500)["detail"]
        assert "nan at 'mean' is no JSON number" in custom(driver, {"page": "mean"}, 500)["detail"]
        bound = custom(driver, {"page": "a"}, 422, position_bound={"in": {"0": 0}})
        assert "does not say its position" in bound["detail"]
        missing = driver.client.post("/v1/stores/own/query", json={"type": "custom"})
        assert (missing.status_code, "query is missing" in missing.text) == (422, True)
        for path in ("/keys/a", "/range", "/count"):
            refused = asked(driver, path, 400)
            assert refused["reason"] == "UNKNOWN_QUERY_TYPE"
            assert '{"type": "custom", "query": …}' in refused["detail"]
        assert {"visitors": ["x"]} in custom(driver, {"page": "a"})["results"].values()


def test_one_without_the_method_and_one_that_is_not_transactional_say_so() -> None:
    with visiting(Unasked) as driver:
        driver.pipe("in", "a", "x")
        refused = custom(driver, {"page": "a"}, 400)
        assert refused["reason"] == "UNKNOWN_QUERY_TYPE"
        assert "its class does not define `query`" in refused["detail"]
    with visiting(Direct) as driver:
        driver.pipe("in", "a", "x")
        assert "is not transactional" in custom(driver, {"page": "a"}, 400, isolation_level="read_committed")["detail"]
        found = custom(driver, {"page": "a"}, isolation_level="read_uncommitted")["results"]
        assert {"visitors": ["x"]} in found.values()


class Totals(Summed):
    """Answers the sum of all that it has."""

    def query(self, query: Any, isolation_level: IsolationLevel) -> Any:
        with self.reader(isolation_level).scan(EVERY_KEY) as rows:
            return sum(int(value) for _, value in rows)


def test_a_subclass_of_a_kind_may_have_the_method_too_with_the_position_of_the_kind() -> None:
    with TestDriver(keeping(Totals)) as driver:
        driver.pipe_all("in", [Record(f"k{n}", str(n), n) for n in range(6)])
        driver.autocommit = False
        driver.pipe("in", "k1", "100")
        found = custom(driver, 0, isolation_level="read_committed")
        assert (found["results"], found["position"]) == ({"0": 15}, {"in": {"0": 5}})
        bound = {"in": {"0": 6}}
        assert custom(driver, 0, isolation_level="read_uncommitted", position_bound=bound)["results"] == {"0": 115}
        assert custom(driver, 0, 412, isolation_level="read_committed", position_bound=bound)


def test_its_definition_says_what_the_kind_needs() -> None:
    def declared(kind: str) -> StoreDefinition:
        return stores.custom("own", KINDS[kind](True), key=serdes.string, value=serdes.string)

    def built_in(made: StoreDefinition) -> tuple[Any, ...]:
        return made.kind, made.types, made.retention_ms, made.window_size_ms, dict(made.changelog_settings())

    types: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    for kind, wanted in {
        "key_value": stores.key_value("own", **types),
        "timestamped_key_value": stores.timestamped_key_value("own", **types),
        "timestamped_window": stores.window("own", size=minute, retention=hour, timestamped=True, **types),
        "session": stores.session("own", retention=hour, **types),
        "versioned": stores.versioned("own", history=hour, **types),
    }.items():
        assert built_in(declared(kind)) == built_in(wanted)
        assert type(declared(kind).build()).__module__ == __name__
