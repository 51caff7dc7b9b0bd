"""The changelog's record of a delete in a store with headers: as in Kafka Streams 4.4, it has the timestamp and headers
of the record that deleted the key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, SessionWindows, TumblingWindows, serdes, stores
from stateline.log import Record as LogRecord
from stateline.processing.changelog import own_headers
from stateline.testing import Record, TestDriver
from support.processes.running_worker import read_all

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
BY_A, BY_B = (("by", b"a"), ("e", bytes(8))), (("by", b"b"), ("v", b"\0"))
GUARANTEES = ("at_least_once", "exactly_once_v2")
Change = tuple[bytes | None, int, Any]


def changes(driver: TestDriver, store: str) -> list[tuple[bytes, Change]]:
    """Value, timestamp and own headers of each record of a store's changelog, by key."""
    records: list[LogRecord] = read_all(driver._place.log, f"deletes-{store}-changelog", 1)
    return [(r.key or b"", (r.value, r.timestamp_ms, own_headers(r.headers))) for r in records]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_processors_delete_has_those_of_its_record_or_the_given_ones(guarantee: str) -> None:
    app = App("deletes", config={"processing.guarantee": guarantee})
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string, "headers": True}
    kept = app.store(stores.timestamped_key_value("kept", **common))
    windows = app.store(stores.window("windows", size=SECOND, retention=HOUR, **common))
    sessions = app.store(stores.session("sessions", retention=HOUR, **common))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[kept, windows, sessions])
    def keep(record: Any, kept: Any, windows: Any, sessions: Any) -> None:
        kept.put(record.key, record.value)
        kept.put("given", record.value, timestamp_ms=5, headers=[("given", b"1")])
        if record.value is None:
            kept.delete("deleted")
        windows.put(record.key, record.value, 1_000)
        sessions.put(record.key, 0, 5, record.value)
        sessions.remove(record.key, 7, 9)

    with TestDriver(app) as driver:
        driver.pipe("in", "k", "x", timestamp_ms=10, headers=BY_A)
        driver.pipe("in", "k", None, timestamp_ms=20, headers=BY_B)
        gone = (None, 20, BY_B)
        assert dict(changes(driver, "kept")) == {b"k": gone, b"given": (None, 5, (("given", b"1"),)), b"deleted": gone}
        (row,) = {key for key, _ in changes(driver, "windows")}
        assert [change for _, change in changes(driver, "windows")] == [(b"x", 10, BY_A), gone]
        assert row[:1] == b"k"
        assert {key[-1]: change for key, change in changes(driver, "sessions")} == {0: gone, 7: gone}
        driver.crash()
        driver.pipe("in", "k", "again", timestamp_ms=30)
        assert dict(changes(driver, "kept"))[b"k"] == (b"again", 30, ())


def test_a_record_that_fails_leaves_the_delete_of_the_record_before_as_it_was() -> None:
    app = App("deletes", config={"processing.exception.handler": "skip"})
    kept = app.store(stores.timestamped_key_value("kept", key=serdes.string, value=serdes.string, headers=True))

    @app.process("in", key=serdes.string, value=serdes.string, stores=[kept])
    def delete(record: Any, kept: Any) -> None:
        kept.delete("k")
        if record.value == "fails":
            raise ValueError("after the delete")

    with TestDriver(app) as driver:
        driver.pipe_all("in", [Record("k", "good", 1, headers=BY_A), Record("k", "fails", 2, headers=BY_B)])
        assert changes(driver, "kept") == [(b"k", (None, 1, BY_A))]


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "reduce": lambda s: s.group_by_key().reduce(_newest, "made"),
    "windowed reduce": lambda s: s.group_by_key().windowed_by(TumblingWindows(SECOND)).reduce(_newest, "made"),
    "sessions": lambda s: s.group_by_key().windowed_by(SessionWindows(SECOND)).reduce(_newest, "made"),
    "table": lambda s: s.map_values(lambda k, v: None if v == "gone" else v).to_table("made"),
}


def _newest(old: str, new: str) -> str | None:
    return None if new == "gone" else new


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operators_delete_has_those_of_the_record_that_caused_it(operator: str) -> None:
    app = App("deletes", config={"dsl.store.format": "HEADERS"})
    OPERATORS[operator](app.stream("in", key=serdes.string, value=serdes.string))
    with TestDriver(app) as driver:
        driver.pipe("in", "k", "x", timestamp_ms=1, headers=BY_A)
        driver.pipe("in", "k", "gone", timestamp_ms=1, headers=BY_B)
        assert [change for _, change in changes(driver, "made")] == [(b"x", 1, BY_A), (None, 1, BY_B)]


def test_each_of_a_keys_sessions_has_the_headers_of_the_record_that_changed_it_last() -> None:
    app = App("deletes", config={"dsl.store.format": "HEADERS"})
    rows = app.stream("in", key=serdes.string, value=serdes.string)
    rows.group_by_key().windowed_by(SessionWindows(SECOND, grace=HOUR)).reduce(max, "made")
    with TestDriver(app) as driver:
        driver.pipe("in", "k", "x", timestamp_ms=0, headers=BY_A)
        joins, another, equal = (("joins", b""),), (("another", b""),), (("equal", b""),)
        driver.pipe_all(
            "in",
            [Record("k", "y", 500, headers=joins), Record("k", "z", 9_000, headers=another)],
        )
        driver.pipe("in", "k", "a", timestamp_ms=9_000, headers=equal)  # of the same time, and less
        found = {(w.start, w.end): w.headers for w in driver.store("made").fetch_all()}
        assert found == {(0, 500): joins, (9_000, 9_000): equal}
        deleted = [(key, change) for key, change in changes(driver, "made") if change[0] is None]
        assert [change for _, change in deleted] == [(None, 500, joins)]
