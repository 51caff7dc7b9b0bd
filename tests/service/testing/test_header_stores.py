"""Stores with headers: values keep the headers of their records, wherever they are read, through every restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pytest
from pydantic import BaseModel

from stateline import App, SessionWindows, SlidingWindows, TumblingWindows, serdes, stores
from stateline.client.answers import AnswerReader, Reply
from stateline.client.results import KeyAnswer
from stateline.log import Record as LogRecord
from stateline.log import open_log
from stateline.processing.changelog import (
    end_of_last_commit,
    own_headers,
    owner_epoch,
    owner_headers,
    position_of_changelog,
    with_own,
    without_former_owners,
)
from stateline.server.changes.routes import change_members
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError, Position, TopicPartition, TopologyError
from stateline_store.rows.windowed_keys import session_key
from support.processes.running_worker import configured, create, eventually, running
from support.processes.served_here import served_here

ARROW = "application/vnd.apache.arrow.stream"
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
# Names that a commit's own headers have, bytes that are no text, no value, one name twice.
ODD = (("trace", b"1"), ("trace", b"\xff"), ("e", bytes(8)), ("t", b"{}"), ("v", b"\0"), ("c", None))
LIKE_A_POSITION = (("v", b"\0"), ("c", b"x"))
SENT: tuple[Any, ...] = ((), (("h", b"x"),), ODD, ODD[:3], ODD[:4], ODD[:5], (("c", b"1"),), (("v", b"\0"), ("c", b"")),
                         (("h", None),), LIKE_A_POSITION)  # fmt: skip
GUARANTEES = ("at_least_once", "exactly_once_v2")


def app_with_stores(*, persistent: bool = True, guarantee: str = "at_least_once") -> App:
    """A processor that keeps each record in a store of each kind, and a table of the same topic."""
    app = App("headers", config={"processing.guarantee": guarantee})
    rows = app.topic("in", key=serdes.string, value=serdes.string)
    common: dict[str, Any] = {
        "key": serdes.string, "value": serdes.string, "persistent": persistent, "headers": True
    }  # fmt: skip
    app.table(rows, store="table", headers=True, persistent=persistent)
    kept = app.store(stores.timestamped_key_value("kept", **common))
    windows = app.store(stores.window("windows", size=SECOND, retention=HOUR, **common))
    sessions = app.store(stores.session("sessions", retention=HOUR, **common))

    @app.process(rows, stores=[kept, windows, sessions])
    def keep(record: Any, kept: Any, windows: Any, sessions: Any) -> None:
        kept.put(record.key, record.value)
        windows.put(record.key, record.value, 0)
        sessions.put(record.key, 0, 5, record.value)

    return app


@contextmanager
def sent(app: App) -> Iterator[tuple[TestDriver, dict[str, Any]]]:
    """A driver that has got a record with each of `SENT`, and the headers by key."""
    with TestDriver(app) as driver:
        for number, headers in enumerate(SENT):
            driver.pipe("in", f"k{number}", "v", timestamp_ms=number, headers=headers)
        yield driver, {f"k{number}": headers for number, headers in enumerate(SENT)}


def found(driver: TestDriver) -> list[dict[str, Any]]:
    """The headers by key: of the table and of the three stores."""
    by_key = [{e.key: e.headers for e in driver.store(name).all()} for name in ("table", "kept")]
    return by_key + [{w.key: w.headers for w in driver.store(name).fetch_all()} for name in ("windows", "sessions")]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("persistent", [True, False])
def test_every_kind_keeps_the_headers_of_its_records_through_a_crash_and_a_restore(
    persistent: bool, guarantee: str
) -> None:
    with sent(app_with_stores(persistent=persistent, guarantee=guarantee)) as (driver, headers):
        assert found(driver) == [headers] * 4
        driver.crash()
        assert found(driver) == [headers] * 4
        driver.pipe("in", "k1", None, headers=[("gone", b"")])
        driver.restart()  # stores in memory are restored from their changelogs
        del headers["k1"]
        assert found(driver)[:2] == [headers] * 2
        assert driver.client.get("/v1/stores/kept/range").json()["position"] == {"in": {"0": len(SENT)}}


def test_a_processor_reads_and_writes_headers() -> None:
    app = App("headers")
    rows = app.topic("in", key=serdes.string, value=serdes.string)
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    kept = app.store(stores.timestamped_key_value("kept", headers=True, **common))
    windows = app.store(stores.window("windows", size=SECOND, retention=HOUR, headers=True, **common))
    sessions = app.store(stores.session("sessions", retention=HOUR, headers=True, **common))
    bare = app.store(stores.timestamped_key_value("bare", **common))
    seen: list[Any] = []

    @app.process(rows, stores=[kept, windows, sessions, bare])
    def keep(record: Any, kept: Any, windows: Any, sessions: Any, bare: Any) -> None:
        own = None if record.value == "record's" else [("own", b"1")]
        kept.put("a", "x", headers=own)
        kept.put_if_absent("a", "y", headers=[("not", b"taken")])
        windows.put("a", "x", 0, headers=own)
        sessions.put("a", 0, 5, "x", headers=own)
        seen.append((kept.get("a"), *kept.get_with_timestamp("a"), list(kept.range())))
        seen.append([*windows.fetch("a", 0, 9), *windows.fetch_with_timestamp("a", 0, 9), *windows.all()])
        seen.append(list(sessions.fetch("a")))
        seen.append(
            (kept.get_with_headers("a"), windows.get_with_headers("a", 0), sessions.get_with_headers("a", 0, 5))
        )
        assert kept.get_with_headers("b") is None
        with pytest.raises(TopologyError, match="'bare' keeps no headers: declare it with headers=True"):
            bare.get_with_headers("a")
        with pytest.raises(TopologyError, match="'bare' keeps no headers: declare it with headers=True"):
            bare.put("a", "x", headers=own or ())
        with pytest.raises(InvalidArgumentError):
            kept.put("a", "x", headers=[("a", "text")])

    with TestDriver(app) as driver:
        driver.pipe("in", "k", "record's", timestamp_ms=7, headers=[("of", b"record")])
        assert seen[0] == ("x", "x", 7, [("a", "x")])
        assert seen[1] == [(0, "x"), (0, ("x", 7)), ("a", 0, 1000, "x")]
        assert seen[2] == [("a", 0, 5, "x")]
        assert [tuple(each) for each in seen[3]] == [("x", 7, (("of", b"record"),))] * 3
        driver.pipe("in", "k", "own", timestamp_ms=8)
        assert [tuple(each) for each in seen[7]] == [("x", 8, (("own", b"1"),))] * 3


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "count": lambda s: s.group_by_key().count("made"),
    "reduce": lambda s: s.group_by_key().reduce(lambda old, new: old + new, "made"),
    "windowed count": lambda s: s.group_by_key().windowed_by(TumblingWindows(SECOND)).count("made"),
    "windowed reduce": lambda s: (
        s.group_by_key().windowed_by(TumblingWindows(SECOND)).reduce(lambda old, new: old + new, "made")
    ),
    "sliding": lambda s: s.group_by_key().windowed_by(SlidingWindows(SECOND, grace=SECOND)).count("made"),
    "sessions": lambda s: s.group_by_key().windowed_by(SessionWindows(SECOND)).count("made"),
    "table": lambda s: s.to_table("made").map_values(lambda k, v: v, store="mapped"),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operators_row_has_the_headers_of_the_record_that_changed_it_last(operator: str) -> None:
    results = []
    for form in ("DEFAULT", "HEADERS"):
        app = App("headers", config={"dsl.store.format": form})
        OPERATORS[operator](app.stream("in", key=serdes.string, value=serdes.string))
        with TestDriver(app) as driver:
            for number in range(3):
                driver.pipe("in", "a", "x", timestamp_ms=number, headers=[("h", b"%d" % number)])
            driver.crash()
            driver.pipe("in", "a", "x", timestamp_ms=3, headers=ODD)
            store = driver.store("made")
            windowed = operator not in ("count", "reduce", "table")
            entries: list[Any] = list(store.fetch_all() if windowed else store.all())
            results.append([(e.value, e.timestamp) for e in entries])
            assert {e.headers for e in entries if e.timestamp == 3} == {ODD if form == "HEADERS" else None}
    assert results[0] == results[1]


SHOWN = [["trace", "1"], ["trace", {"base64": "/w=="}], ["e", "\0" * 8], ["t", "{}"], ["v", "\0"], ["c", None]]


def test_answers_show_headers_in_every_form() -> None:
    with sent(app_with_stores()) as (driver, _):
        get = driver.client.get
        assert get("/v1/stores/kept/keys/k2").json()["headers"] == SHOWN
        assert get("/v1/stores/kept/keys/none").json()["headers"] is None
        assert get("/v1/stores/kept/range").json()["entries"][2]["headers"] == SHOWN
        assert get("/v1/stores/windows/keys/k2/windows").json()["entries"][0]["headers"] == SHOWN
        assert get("/v1/stores/sessions/keys/k2/sessions").json()["entries"][0]["headers"] == SHOWN
        lines = get("/v1/stores/windows/windows", headers={"accept": "application/x-ndjson"}).text.splitlines()
        assert orjson.loads(lines[2])["headers"] == SHOWN
        arrow = get("/v1/stores/kept/range", headers={"accept": ARROW}).content
        table = pa.ipc.open_stream(BytesIO(arrow)).read_all()
        assert [[(h["name"], h["value"]) for h in row] for row in table["headers"].to_pylist()] == [*map(list, SENT)]
        rows = get("/v1/stores/kept/range", headers={"accept": "text/csv"}).text.splitlines()
        assert rows[0] == "key,value,timestamp,headers"
        assert rows[2] == 'k1,v,1,"[[""h"",""x""]]"'
        described = get("/v1/stores/kept").json()["columns"][-1]
        assert described == {"name": "headers", "type": "headers", "nullable": True}


def arrow(content: bytes) -> list[list[tuple[str, bytes | None]] | None]:
    """The headers of each row."""
    rows = pa.ipc.open_stream(BytesIO(content)).read_all()["headers"].to_pylist()
    return [None if row is None else [(h["name"], h["value"]) for h in row] for row in rows]


def test_snapshots_and_changes_show_headers() -> None:
    with sent(app_with_stores(guarantee="exactly_once_v2")) as (driver, _):
        client = driver.client
        driver.pipe("in", "k1", None, headers=[("gone", b"")])
        stores_ = ["kept", "table", "windows", "sessions"]
        snapshot = client.post("/v1/snapshots", json={"stores": stores_}).json()
        expected = [list(headers) for number, headers in enumerate(SENT) if number != 1]
        for store in stores_:
            parts = snapshot["stores"][store]
            path = (parts[0] if isinstance(parts, list) else parts["0"])["path"]
            assert arrow(client.get(path).content) == expected
            assert arrow(client.get(f"{path}?columns=headers").content) == expected
        for store in ("kept", "table"):
            offsets = client.get(f"/v1/stores/{store}/changes/offsets").json()
            span = {"partition": 0, "begin": 0, "end": offsets["end"]["0"], "topic_id": offsets["topic_id"]}
            rows = client.get(f"/v1/stores/{store}/changes/rows", params=span)
            assert arrow(rows.content) == [*map(list, SENT), None]


def test_the_client_and_spark_have_the_headers_as_they_were() -> None:
    from stateline.spark.reading.row_types import RowShape, default_schema  # PySpark takes a second to load

    with sent(app_with_stores()) as (driver, headers):
        reply = driver.client.get("/v1/stores/kept/keys/k2")
        answer = AnswerReader(KeyAnswer).read(Reply(200, {"content-type": "application/json"}, reply.content))
        assert answer.headers == headers["k2"]
        described = driver.client.get("/v1/stores/kept").json()
        shape = RowShape(default_schema(described), described)
        arrow_rows = driver.client.get("/v1/stores/kept/range", headers={"accept": ARROW}).content
        (batch,) = pa.ipc.open_stream(BytesIO(arrow_rows)).read_all().to_batches()
        rows = shape.recast(batch)["headers"].to_pylist()
        assert [[(h["name"], h["value"]) for h in row] for row in rows] == [*map(list, SENT)]


def test_a_change_shows_the_headers_of_the_record_and_none_of_a_deletion() -> None:
    definition = app_with_stores().topology().stores["kept"]
    last_of_a_commit = with_own(ODD, (("v", b"\0"), ("c", b"position"), ("t", b"{}"), *owner_headers(3)))
    for headers, shown in ((with_own(ODD, ()), SHOWN), (last_of_a_commit, SHOWN), ((), [])):
        change = LogRecord("changelog", 0, 3, 5, b"k", b"v", headers)
        assert change_members(definition, change)["headers"] == shown
    assert change_members(definition, LogRecord("changelog", 0, 3, 5, b"k", None, ODD))["headers"] is None


EPOCH = dict(owner_headers(3))


@pytest.mark.parametrize(
    "given", [EPOCH, {"e": bytes(8)}, {"v": b"\0"}, {"v": b"\0", "c": b""}, {"t": b"{}"}, {"h": b""}, {}]
)
@pytest.mark.parametrize("added", [{}, EPOCH, {"v": b"\0", "c": b"", "t": b"{}"}, {"v": b"\0", "c": b"", **EPOCH}])
def test_own_headers_are_told_from_those_of_a_commit(given: dict[str, bytes], added: dict[str, bytes]) -> None:
    own = tuple(given.items())
    assert own_headers(with_own(own, tuple(added.items()))) == own


def test_the_last_header_alone_is_an_owners_epoch() -> None:
    def record(*headers: tuple[str, bytes | None]) -> LogRecord:
        return LogRecord("changelog", 0, 0, 0, b"k", b"v", with_own(headers, ()))

    own = record(*owner_headers(5))
    assert owner_epoch([own]) == 0
    assert without_former_owners([own], 9) == ([own], 9)
    assert not position_of_changelog([record(("v", b"\0"), ("c", b"no position"))])
    assert end_of_last_commit([own, record(("v", b"\0"), ("c", b"no position"))]) == 0


def test_a_store_of_kafka_streams_is_served_with_the_headers_of_its_changelog() -> None:
    app = App("headers")
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string, "headers": True}
    app.external_store(stores.timestamped_key_value("count", **common), of="java")
    with TestDriver(app) as driver:
        position = [("v", b"\0"), ("c", Position.of({TopicPartition("in", 0): 5}).encode())]
        for number, headers in enumerate(SENT):
            added = position if number % 2 else []
            driver.pipe("java-count-changelog", f"k{number}", "v", timestamp_ms=number, headers=[*headers, *added])
        found = {e.key: e.headers for e in driver.store("count").all()}
        assert found == {f"k{number}": headers for number, headers in enumerate(SENT)}


def test_sessions_of_kafka_streams_are_served_with_the_headers_of_their_changelog() -> None:
    app = App("headers")
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.string, "headers": True}
    app.external_store(stores.session("visits", retention=HOUR, **common), of="java")
    with TestDriver(app) as driver:
        driver.pipe_bytes("java-visits-changelog", session_key(b"k", 5, 9), b"v", timestamp_ms=9, headers=ODD)
        assert [(w.start, w.end, w.value, w.headers) for w in driver.store("visits").fetch_all()] == [(5, 9, "v", ODD)]


class Kept(BaseModel):
    value: int


def test_values_of_a_model_are_found_readable_when_a_store_with_headers_opens_again() -> None:
    app = App("headers", config={"dsl.store.format": "HEADERS"})
    app.table("in", key=serdes.string, value=serdes.model(Kept))
    with TestDriver(app) as driver:
        driver.pipe("in", "a", Kept(value=1), headers=ODD)
        driver.restart()
        entry = driver.store("in").entry("a")
        assert entry is not None
        assert (entry.value, entry.headers) == (Kept(value=1), ODD)


def test_expired_entries_of_a_table_with_headers_leave_as_plain_values() -> None:
    app = App("headers")
    table = app.table("in", key=serdes.string, value=serdes.string, ttl=SECOND, headers=True)
    app.ktable(table).to_stream().map_values(lambda k, v: v or "gone").to(
        app.topic("out", key=serdes.string, value=serdes.string)
    )
    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=1, headers=ODD)
        driver.pipe("in", "b", "y", timestamp_ms=5_000, headers=[("h", b"b")])
        assert [(r.key, r.value, tuple(r.headers)) for r in driver.read("out")] == [
            ("a", "x", ODD), ("b", "y", (("h", b"b"),)), ("a", "gone", ()),
        ]  # fmt: skip


def test_a_store_that_kept_no_headers_keeps_them_from_now_on() -> None:
    app = App("headers")
    app.table("in", key=serdes.string, value=serdes.string)
    app.stream("in").group_by_key().count("made")
    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=1, headers=ODD)
        driver.pipe("in", "b", "x", timestamp_ms=2, headers=ODD)
        driver.client.get("/v1/stores")
        driver._place.config = driver._place.config.model_copy(update={"dsl_store_format": "HEADERS"})
        app.configure(driver._place.config)
        driver._definitions = {**app.topology().stores}
        driver.restart()
        driver.pipe("in", "b", "y", timestamp_ms=3, headers=[("h", b"x")])
        for store, value in (("in", "y"), ("made", 2)):
            found = {e.key: e for e in driver.store(store).all()}
            assert found["a"].headers == ()
            assert (found["b"].value, found["b"].headers) == (value, (("h", b"x"),))
            shown = driver.client.get(f"/v1/stores/{store}/keys/b?isolation_level=read_committed").json()
            assert shown["headers"] == [["h", "x"]]


def is_found(client: httpx.Client, path: str) -> bool:
    return bool(client.get(path).json().get("found"))


def test_a_worker_and_a_server_take_the_format_of_their_settings_though_the_app_was_not_configured(
    tmp_path: Path,
) -> None:
    def declared() -> App:
        app = App("headers")
        app.table("in", key=serdes.string, value=serdes.string)
        app.stream("in").group_by_key().count("made")
        return app

    app, log = declared(), open_log(f"embedded:{tmp_path / 'log.db'}", tmp_path)
    address, form = f"bootstrap.servers=embedded:{tmp_path / 'log.db'}", "dsl.store.format=HEADERS"
    config = configured(app, tmp_path / "state", bootstrap__servers=f"embedded:{tmp_path / 'log.db'}")
    config = config.model_copy(update={"dsl_store_format": "HEADERS"})
    create(log, {"in": 1})
    with running(app, config, log), served_here(tmp_path / "state", address, form, app=declared()) as here:
        with closing(log.producer()) as producer:
            producer.produce("in", b"a", b"x", timestamp_ms=1, headers=[("h", b"1")], partition=0)
            producer.flush()
        for store in ("in", "made"):
            path = f"/v1/stores/{store}/keys/a"
            eventually(partial(is_found, here.client, path), "the row is there")
            assert here.client.get(path).json()["headers"] == [["h", "1"]]
    log.close()
