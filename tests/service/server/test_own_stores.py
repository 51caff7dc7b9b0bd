"""Stores of one's own over HTTP: subclasses of a kind are asked as that kind is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyarrow import ipc

from stateline import App, serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.testing import Record, TestDriver
from stateline.worker import InputRecord
from stateline_store import (
    KeyValueStore,
    SessionStore,
    StateStore,
    TimestampedKeyValueStore,
    TimestampedWindowStore,
    VersionedStore,
    Windowed,
)

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
