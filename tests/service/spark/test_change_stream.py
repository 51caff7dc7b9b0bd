"""Committed changes as a Spark stream, over a real worker and a real server.

The oracles are the topic that a store's changes come from, and the store itself: the changes replayed are its content.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from stateline.log import open_log
from stateline.rows.columns import STREAM_END
from stateline.server.guard.tokens import hash_of, new_token
from stateline.spark.reading.change_offsets import OffsetsJson, TopicEnds, initial, reached, spans
from stateline.spark.reading.change_reader import ChangeReader, change_schema
from stateline.spark.reading.change_requests import ChangeOptions
from stateline_store import (
    CursorExpiredError,
    InvalidArgumentError,
    TopicPartition,
    UnauthenticatedError,
    UnknownQueryTypeError,
)
from support.http.faulty_proxy import Answered, Cut, FaultyProxy, faulty_proxy
from support.kafka.shared_broker import SharedBroker
from support.processes.change_scene import PARTITIONS, PATIENCE_S, Scene, placed
from support.processes.ports import free_port
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.spark.listening import listening

KINDS = ("newest", "cache", "counts", "memory", "windows", "stamped", "visits", "history")
IN_MEMORY = ("cache", "memory")
NOT_IN_THE_GATE = ("cache", "counts", "stamped")
KILLS = 2
ENTRIES = [(f"k{n % 7}", None if n % 5 == 0 else [n]) for n in range(60)]


class Served(NamedTuple):
    """A scene with its worker and server; `client` asks the server, `proxy` stands before it."""

    scene: Scene
    client: httpx.Client
    proxy: FaultyProxy

    def options(self, store: str, **more: Any) -> dict[str, str]:
        """The options of a stream of this store's changes, through the proxy."""
        given = {"url": self.proxy.url, "store": store, "changes": "true", "retry_s": 60, **more}
        return {name: str(value) for name, value in given.items()}


@contextmanager
def serving(bootstrap: str, root: Path, *settings: str) -> Iterator[Served]:
    guarantee = "processing.guarantee=exactly_once_v2"
    with closing(open_log(bootstrap, root)) as log, Scene(bootstrap, log, root, guarantee) as scene:
        scene.start_worker()
        _, client = scene.start_server(*settings)
        with faulty_proxy(int(client.base_url.port or 0)) as proxy:
            yield Served(scene, client, proxy)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("stream")
    with serving(f"embedded:{root / 'log.db'}", root) as served:
        send(served.scene)
        for store in KINDS:
            served.scene.settle(served.client, store)
        yield served


def send(scene: Scene) -> None:
    """Changes, and among them records of a transaction that is aborted: nobody is ever to see them."""
    half = len(ENTRIES) // 2
    scene.send(ENTRIES[:half])
    with closing(scene.log.producer("aborted")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(scene.source, b"never", b"1", timestamp_ms=1, partition=partition)
        producer.flush()
        producer.abort_transaction()
    with closing(scene.log.admin()) as admin:  # or else its end could stand behind all that is sent
        places = [TopicPartition(scene.source, partition) for partition in range(PARTITIONS)]
        wait_until(lambda: all(admin.watermarks(place)[1] == admin.log_end(place) for place in places))
    scene.send(ENTRIES[half:])


@pytest.fixture(scope="module")
def stream(session: SparkSession) -> Callable[[Mapping[str, str]], DataFrame]:
    """A stream of changes, before there is a query."""

    return lambda options: session.readStream.format("stateline").options(**options).load()


class Sink:
    """What the batches of a query were. One that is repeated has to be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.fails = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [{**row, "value": read(row["value"])} for row in frame.toArrow().to_pylist()]
        known = self.batches.setdefault(batch, rows)
        assert sorted(known, key=placed) == sorted(rows, key=placed)
        assert not self.fails, "as a driver that dies in a batch"

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def begin(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, frame: DataFrame, checkpoint: Path) -> list[dict[str, Any]]:
        """All that there is now."""
        assert self.begin(frame, checkpoint).awaitTermination(120)
        return self.rows


def read(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def logged(scene: Scene, store: str) -> list[dict[str, Any]]:
    """The oracle: the changes in the log, with times as Spark has them."""
    times = ("start", "end", "timestamp")
    return [{name: at(v) if name in times else v for name, v in row.items()} for row in scene.changes(store)]


def at(time_ms: int | None) -> Any:
    return None if time_ms is None else pa.scalar(time_ms, pa.timestamp("ms", tz="UTC")).as_py()


def replayed(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], Any]:
    """What is left of a store when these changes have happened one after the other."""
    found = {(row["key"], row.get("start"), row.get("end")): row["value"] for row in rows}
    return {key: value for key, value in found.items() if value is not None}


def content(served: Served, store: str) -> dict[tuple[Any, ...], Any]:
    """What the store has: by a snapshot, or by a query where there can be none."""
    if store in IN_MEMORY:
        answer = served.client.get(f"/v1/stores/{store}/range?isolation_level=read_committed&limit=1000").json()
        return {(entry["key"], None, None): entry["value"] for entry in answer["entries"]}
    snapshot = served.client.post("/v1/snapshots", json={"stores": [store]}).json()
    tables = [
        pa.ipc.open_stream(served.client.get(part["path"]).content).read_all()
        for part in snapshot["stores"][store].values()
    ]
    rows = [row for table in tables for row in table.to_pylist() if row.get("valid_to") is None]
    return {(row["key"], at(row.get("start")), at(row.get("end"))): read(row["value"]) for row in rows}


# Queries


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, marks=long_only("test_change_rows.py has the rows of every store"))
        if store in NOT_IN_THE_GATE
        else store
        for store in KINDS
    ],
)
def test_the_changes_replayed_are_the_content_of_the_store(
    served: Served, stream: Callable[[Mapping[str, str]], DataFrame], store: str, tmp_path: Path
) -> None:
    wanted = logged(served.scene, store)
    most = len(wanted) // 3
    sink = Sink()
    rows = sink.run(stream(served.options(store, maxChangesPerTrigger=most)), tmp_path)
    assert sorted(rows, key=placed) == wanted
    assert replayed(rows) == content(served, store)
    assert len(sink.batches) >= 3
    assert all(len(batch) <= most for batch in sink.batches.values())


def test_after_a_position_come_the_later_changes_alone(
    served: Served, stream: Callable[[Mapping[str, str]], DataFrame], tmp_path: Path
) -> None:
    position = json.dumps(served.scene.settle(served.client, "visits"))
    before = logged(served.scene, "visits")
    served.scene.send([("later", [1]), ("k1", [2])])
    served.scene.settle(served.client, "visits")
    rows = Sink().run(stream(served.options("visits", **{"from": position})), tmp_path)
    assert sorted(rows, key=placed) == [row for row in logged(served.scene, "visits") if row not in before]


def test_latest_stays_where_it_was_when_the_first_batch_is_repeated(
    served: Served, stream: Callable[[Mapping[str, str]], DataFrame], tmp_path: Path
) -> None:
    """The driver dies before anything has changed, and again in the first batch with changes."""
    sink, options = Sink(), served.options("counts", **{"from": "latest"})
    assert sink.run(stream(options), tmp_path) == []
    before = served.scene.changes("counts")
    served.scene.send([("k1", [3]), ("k2", [4])])
    served.scene.settle(served.client)
    sink.fails = True
    with pytest.raises(StreamingQueryException, match="dies in a batch"):
        sink.run(stream(options), tmp_path)
    served.scene.send([("k3", [5])])
    served.scene.settle(served.client)
    sink.fails = False
    rows = sink.run(stream(options), tmp_path)
    assert sorted(map(placed, rows)) == [placed(row) for row in served.scene.changes("counts") if row not in before]


def test_a_json_value_is_read_as_what_the_schema_gives_and_a_deletion_as_null(
    served: Served, session: SparkSession, tmp_path: Path
) -> None:
    typed = session.readStream.format("stateline").schema("key STRING, value ARRAY<BIGINT>")
    found: list[tuple[str, list[int] | None]] = []
    query = (
        typed.options(**served.options("newest"))
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.extend((row.key, row.value) for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    wanted = [(row["key"], row["value"]) for row in served.scene.changes("newest")]
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert any(value is None for _, value in found), "nothing was deleted: the test shows nothing"


def test_a_listener_sees_how_many_changes_a_query_reads_and_how_many_are_left(
    served: Served, session: SparkSession, stream: Callable[[Mapping[str, str]], DataFrame], tmp_path: Path
) -> None:
    options, changes = served.options("newest", maxChangesPerTrigger=20), served.scene.changes("newest")
    with listening(session.streams) as reports:
        rows = Sink().run(stream(options), tmp_path)
    sources = [report.sources[0] for report in reports]
    assert len(sources) > 2
    assert sum(source.numInputRows for source in sources) == len(rows) == len(changes)
    ends = [json.loads(source.endOffset) for source in sources]
    assert [json.loads(source.startOffset)["next"] for source in sources[1:]] == [end["next"] for end in ends[:-1]]
    assert sources[0].startOffset == "None", "as PySpark says of a query that begins"
    latest = [json.loads(source.latestOffset) for source in sources]
    assert latest[-1] == ends[-1], "all is read"
    assert latest[0] == latest[-1] != ends[0], "there was more"
    assert all(source.metrics == {} for source in sources), "Spark asks sources in Python for none"


def test_a_given_schema_chooses_columns_and_may_have_times_as_numbers(
    served: Served, session: SparkSession, tmp_path: Path
) -> None:
    chosen = session.readStream.format("stateline").schema("start BIGINT, key STRING, `end` TIMESTAMP")
    found: list[dict[str, Any]] = []
    query = (
        chosen.options(**served.options("visits"))
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.toArrow().to_pylist()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    wanted = [
        {"start": row["start"], "key": row["key"], "end": at(row["end"])} for row in served.scene.changes("visits")
    ]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_store_without_changes_is_refused_with_the_reason(
    served: Served, stream: Callable[[Mapping[str, str]], DataFrame]
) -> None:
    with pytest.raises(Exception, match="has no changelog, so there is nothing to read its changes from"):
        stream(served.options("quiet"))


@long_only("test_change_feed.py kills under the feed that it reads")
def test_no_change_is_lost_or_repeated_while_worker_server_and_query_are_killed(
    stream: Callable[[Mapping[str, str]], DataFrame], tmp_path: Path
) -> None:
    stores = ("counts", "memory")
    with serving(f"embedded:{tmp_path / 'log.db'}", tmp_path) as served:
        scene = served.scene
        worker, server = scene.processes[-2:]
        scene.send([("first", [0])])
        scene.settle(served.client)
        sinks = {store: Sink() for store in stores}

        def begin(store: str) -> StreamingQuery:
            frame = stream(served.options(store, maxChangesPerTrigger=40))
            return sinks[store].begin(frame, tmp_path / store, processingTime="0 seconds")

        queries = {store: begin(store) for store in stores}
        for kill in range(KILLS):
            seen = len(sinks["counts"].rows)
            scene.send([(f"k{n % 50}", None if n % 7 == 0 else [kill, n]) for n in range(400)])
            wait_until(lambda seen=seen: len(sinks["counts"].rows) > seen, PATIENCE_S)  # type: ignore[misc]  # a default
            worker.kill()
            worker.wait()
            worker = scene.start_worker()
            scene.send([(f"k{n % 50}", [kill, -n]) for n in range(400)])
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            server, client = scene.start_server()
            served = served._replace(client=client)
            served.proxy.target = int(client.base_url.port or 0)
            for store, query in queries.items():
                query.stop()
                queries[store] = begin(store)
        for store in stores:
            scene.settle(served.client, store)
            count = len(scene.records(store))
            wait_until(lambda s=store, n=count: len(sinks[s].rows) >= n or not queries[s].isActive, PATIENCE_S)  # type: ignore[misc]  # defaults
            queries[store].stop()
            assert queries[store].exception() is None
            assert sorted(sinks[store].rows, key=placed) == logged(scene, store)
            assert replayed(sinks[store].rows) == content(served, store)


@long_only("Spark reads over HTTP, and test_change_feed.py has the server read changes from a broker")
def test_on_a_broker_the_changes_are_those_that_the_transactions_committed(
    kafka_broker: SharedBroker, stream: Callable[[Mapping[str, str]], DataFrame], tmp_path: Path
) -> None:
    with serving(str(kafka_broker.bootstrap_servers), tmp_path) as served:
        send(served.scene)
        for store in ("newest", "memory"):
            served.scene.settle(served.client, store)
            rows = Sink().run(stream(served.options(store, maxChangesPerTrigger=20)), tmp_path / store)
            assert sorted(rows, key=placed) == logged(served.scene, store)
            assert replayed(rows) == content(served, store)


# The reader alone


def reader(served: Served, store: str, **more: Any) -> ChangeReader:
    options = served.options(store, **more)
    return ChangeReader(options, change_schema(options))


def rows_of(reader: ChangeReader, start: OffsetsJson, end: OffsetsJson) -> list[dict[str, Any]]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += [{**row, "value": read(row["value"])} for row in batch.to_pylist()]
    return sorted(found, key=placed)


@pytest.mark.parametrize(
    "lost_after", [pytest.param(0, marks=long_only("one that breaks off later is in the gate")), 1_000]
)
def test_a_stream_that_breaks_off_is_taken_up_where_it_was(served: Served, lost_after: int) -> None:
    changes = reader(served, "newest")
    start = changes.initialOffset()
    end = changes.latestOffset(start, ReadAllAvailable())
    served.proxy.faults.extend(
        [
            Cut(lost_after),
            Answered("503 Service Unavailable", {"Retry-After": "0"}),
            Answered("429 Too Many Requests", {"Retry-After": "1"}, '{"detail": "too much"}'),
            Cut(lost_after),
        ]
    )
    try:
        assert rows_of(changes, start, end) == logged(served.scene, "newest")
    finally:
        served.proxy.faults.clear()


class Shortened(BaseHTTPRequestHandler):
    """Passes the answers of `target` on: the first one without its end, which HTTP does not notice."""

    target = ""
    answered = 0

    def do_GET(self) -> None:  # the library's name
        content = httpx.get(f"{self.target}{self.path}", timeout=HANGING_S).content
        if Shortened.answered == 0:
            content = content[: -len(STREAM_END)]
        Shortened.answered += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def test_a_stream_without_its_end_mark_is_asked_for_again(served: Served) -> None:
    schema, changes = change_schema(served.options("newest")), reader(served, "newest")
    start = changes.initialOffset()
    end = changes.latestOffset(start, ReadAllAvailable())
    Shortened.target = str(served.client.base_url)
    with HTTPServer(("127.0.0.1", 0), Shortened) as between:
        thread = threading.Thread(target=between.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{between.server_address[1]}"
        rows = rows_of(ChangeReader(served.options("newest", url=url), schema), start, end)
        between.shutdown()
        thread.join()
    assert rows == logged(served.scene, "newest")
    assert Shortened.answered > PARTITIONS


def test_of_several_servers_one_that_answers_is_asked(served: Served) -> None:
    changes = reader(served, "newest", url=f"http://127.0.0.1:{free_port()},{served.proxy.url}")
    start = changes.initialOffset()
    assert rows_of(changes, start, changes.latestOffset(start, ReadAllAvailable())) == logged(served.scene, "newest")


def test_latest_stays_where_it_was_while_a_query_has_had_no_batch(served: Served) -> None:
    changes = reader(served, "counts", **{"from": "latest"})
    begin = changes.initialOffset()
    before = served.scene.changes("counts")
    served.scene.send([("k1", [8])])
    served.scene.settle(served.client)
    assert changes.initialOffset() == begin
    rows = rows_of(changes, begin, changes.latestOffset(begin, ReadAllAvailable()))
    assert rows == [row for row in logged(served.scene, "counts") if placed(row) not in map(placed, before)]


@pytest.mark.parametrize("fault", [Cut(0), Cut(150), Answered("503 Busy"), Answered("429 Slow", {"Retry-After": "1"})])
def test_what_may_pass_leaves_a_query_where_it_is(served: Served, fault: Any) -> None:
    changes = reader(served, "counts")
    start = changes.initialOffset()
    served.proxy.faults.append(fault)
    before = len(served.proxy.requests)
    assert changes.latestOffset(start, ReadAllAvailable()) is start
    assert changes.latestOffset(start, ReadAllAvailable()) is start  # it is too early to ask again
    assert len(served.proxy.requests) == before + 1
    ends: list[OffsetsJson] = []

    def moved() -> bool:
        ends.append(changes.latestOffset(start, ReadAllAvailable()))
        return ends[-1] is not start

    wait_until(moved)
    assert rows_of(changes, start, ends[-1]) == logged(served.scene, "counts")


def test_an_idle_stream_asks_seldom(served: Served) -> None:
    changes = reader(served, "counts", **{"from": "latest"})
    end = changes.latestOffset(changes.initialOffset(), ReadAllAvailable())
    before = len(served.proxy.requests)
    for _ in range(50):
        assert changes.latestOffset(end, ReadAllAvailable()) is end
    assert len(served.proxy.requests) <= before + 2


def test_offsets_of_another_topic_end_the_query(served: Served) -> None:
    changes = reader(served, "counts")
    for member in ("id", "topic"):
        with pytest.raises(CursorExpiredError, match="created again"):
            changes.latestOffset(changes.initialOffset() | {member: "another"}, ReadAllAvailable())
    end = changes.latestOffset(changes.initialOffset(), ReadAllAvailable()) | {"id": "another"}
    with pytest.raises(CursorExpiredError, match="created again"):
        rows_of(changes, changes.initialOffset(), end)


def test_a_schema_that_the_changes_do_not_have_is_refused(served: Served) -> None:
    wrong: dict[str, DataType] = {"valid_to": TimestampType(), "key": LongType(), "start": StringType()}
    for name, type_ in wrong.items():
        changes = ChangeReader(served.options("counts"), StructType([StructField(name, type_)]))
        with pytest.raises(InvalidArgumentError, match="The schema has"):
            changes.initialOffset()


def test_a_stream_needs_a_token_where_the_server_has_them(served: Served, tmp_path: Path) -> None:
    token, other = new_token(), new_token()
    entries = [
        {"name": "one", "sha256": hash_of(token).hex(), "stores": ["counts"]},
        {"name": "two", "sha256": hash_of(other).hex(), "stores": ["newest"]},
    ]
    tokens = tmp_path / "tokens.json"
    tokens.touch(mode=0o600)
    tokens.write_text(json.dumps({"tokens": entries}))
    _, client = served.scene.start_server(f"server.tokens.file={tokens}")
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    options = {"url": str(client.base_url), "store": "counts", "changes": "true"}
    changes = ChangeReader(options | {"token_file": str(file)}, change_schema(options | {"token": token}))
    start = changes.initialOffset()
    assert rows_of(changes, start, changes.latestOffset(start, ReadAllAvailable())) == logged(served.scene, "counts")
    assert token not in repr(ChangeOptions.read(options | {"token": token}))
    with pytest.raises(UnauthenticatedError):
        change_schema(options)
    with pytest.raises(Exception, match="may not read the store"):
        change_schema(options | {"token": other})


def test_a_store_without_changes_has_no_schema(served: Served) -> None:
    with pytest.raises(UnknownQueryTypeError):
        change_schema(served.options("quiet"))


# Options and offsets


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"url": ""}, "url is missing"),
        ({"url": "ftp://x"}, "no address"),
        ({"store": ""}, "store is missing"),
        ({"maxChangesPerTrigger": "many"}, "maxChangesPerTrigger='many'"),
        ({"maxChangesPerTrigger": "0"}, "from 1 on"),
        ({"snapshot": "x"}, "no option 'snapshot'"),
        ({"changes": "latest"}, "A stream has the changes"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        ChangeOptions.read({"url": "http://localhost:1", "store": "counts", "changes": "true"} | wrong)


def test_the_names_of_options_have_any_case() -> None:
    given = {"URL": "http://a:1, http://b:2/", "Store": "counts", "CHANGES": "TRUE", "max_changes_per_trigger": "7"}
    options = ChangeOptions.read(given)
    assert options.server.urls == ("http://a:1", "http://b:2/")
    assert (options.max_changes, options.begin) == (7, "earliest")
    assert ChangeOptions.read(given | {"From": "latest"}).begin == "latest"


some_offsets = st.dictionaries(st.integers(0, 11), st.integers(0, 30), max_size=12)


@given(begin=some_offsets, looks=st.lists(st.tuples(some_offsets, st.none() | st.integers(1, 9)), max_size=8))
def test_batches_that_follow_each_other_leave_nothing_out_and_repeat_nothing(
    begin: dict[int, int], looks: list[tuple[dict[int, int], int | None]]
) -> None:
    told = TopicEnds("t", "id", 12, begin, {})
    ends: list[OffsetsJson] = [initial(told)]
    most = dict(begin)
    for end, limit in looks:
        most = {p: max(most.get(p, 0), end.get(p, 0)) for p in range(12)}
        found = reached(ends[-1], TopicEnds("t", "id", 12, None, end), limit)
        assert list(found) == sorted(found)
        assert list(found["next"]) == sorted(found["next"])
        if found is not ends[-1]:
            assert json.dumps(found) != json.dumps(ends[-1])
            ends.append(json.loads(json.dumps(found)))
    read: dict[int, list[int]] = {p: [] for p in range(12)}
    for before, after in pairwise(ends):
        for span in spans(before, after):
            read[span.partition] += range(span.first, span.end)
    for p, offsets in read.items():
        assert offsets == list(range(begin.get(p, 0), ends[-1]["next"][str(p)]))
        assert len(ends) == 1 or ends[-1]["next"][str(p)] <= most[p]


@given(begin=some_offsets, later=some_offsets, end=some_offsets)
def test_a_first_batch_is_read_from_where_it_began_wherever_a_query_would_begin_now(
    begin: dict[int, int], later: dict[int, int], end: dict[int, int]
) -> None:
    first = initial(TopicEnds("t", "id", 12, begin, {}))
    batch = reached(first, TopicEnds("t", "id", 12, None, end), None)
    assert batch is not first
    again = initial(TopicEnds("t", "id", 12, later, {}))
    assert spans(again, batch) == spans(first, batch)


def test_partitions_that_are_added_later_are_read_from_their_beginning() -> None:
    first = reached(initial(told := TopicEnds("t", "id", 2, {0: 3}, {0: 5, 1: 1})), told, None)
    assert reached(first, TopicEnds("t", "id", 4, None, {0: 5, 1: 1}), None) is first
    batch = reached(first, TopicEnds("t", "id", 4, None, {0: 5, 1: 1, 3: 2}), None)
    assert [(span.partition, span.first, span.end) for span in spans(first, batch)] == [(3, 0, 2)]


def test_a_batch_has_no_more_changes_than_are_allowed() -> None:
    told = TopicEnds("t", "id", 2, {0: 0, 1: 0}, {0: 100, 1: 50})
    batch = reached(initial(told), told, ReadMaxRows(30).max_rows)
    assert batch["next"] == {"0": 20, "1": 10}
