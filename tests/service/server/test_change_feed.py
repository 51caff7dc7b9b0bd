"""What change feeds promise while things go wrong: workers that are killed, logs that lose what comes next."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event

import httpx
import orjson
import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from stateline.config.loading import load_config
from stateline.log import Log, NewTopic, Producer, Record
from stateline.processing.changelog import position_of_changelog
from stateline.server.changes import topic_reader
from stateline.server.changes.log import ChangeLog
from stateline.server.changes.topic_reader import After, AfterInput, CommittedRecords
from stateline.server.rows.event_stream import HEARTBEAT, Outbox, event_bytes
from stateline_store import CursorExpiredError, LogUnavailableError, NotReadyError, Position, PositionBound
from support.log.log_bench import until
from support.processes.change_scene import PARTITIONS, PATIENCE_S, Reader, Scene, reading
from support.processes.query_server import wait_until
from support.processes.running_worker import create, read_all
from support.run.length import long_or_short, on_one_log
from support.run.patience import HANGING_S

KILLS = long_or_short(3, 1)
MOST_EVENTS = long_or_short(40, 80)  # of one connection
INPUT_RECORDS = 700
NOBODY: frozenset[int] = frozenset()


# Workers that are killed


class Follower(threading.Thread):
    """Reads the changes of a store over connections that break, each one going on behind the last event."""

    def __init__(self, client: httpx.Client, store: str) -> None:
        super().__init__(name=f"follower-{store}")
        self._base_url, self.store = client.base_url, store
        self._chance = random.Random(store)
        self.places: list[tuple[int, int]] = []
        self.values: dict[str, object] = {}
        self.connections = 0
        self.done = threading.Event()
        self.error: BaseException | None = None

    def has(self, count: int) -> bool:
        """Whether so many changes were given, or something is wrong."""
        return len(self.places) >= count or self.error is not None

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._base_url, timeout=PATIENCE_S) as client:
                last = None
                while not self.done.is_set():
                    with reading(client, self.store, last=last, from_="earliest") as reader:
                        self.connections += 1
                        self._read(reader, self._chance.randrange(1, MOST_EVENTS))
                        last = reader.id
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def _read(self, reader: Reader, count: int) -> None:
        for event in reader:
            if event.name == "change":
                self.places.append((event.data["partition"], event.data["offset"]))
                self.values[event.data["key"]] = event.data["value"]
                count -= 1
            if count <= 0 or self.done.is_set():
                return


@on_one_log("kafka", "a kill leaves more behind on Kafka")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_no_change_is_lost_or_repeated_while_the_worker_is_killed_and_readers_come_and_go(
    bootstrap: str, log: Log, guarantee: str, tmp_path: Path
) -> None:
    with Scene(bootstrap, log, tmp_path, f"processing.guarantee={guarantee}") as scene:
        worker = scene.start_worker()
        _, client = scene.start_server()
        scene.send([("first", 1)])
        scene.settle(client)
        followers = [Follower(client, store) for store in ("newest", "counts")]
        for follower in followers:
            follower.start()
        try:
            for kill in range(KILLS):
                seen = len(followers[1].places)
                scene.send([(f"k{n % 50}", None if n % 7 == 0 else [kill, n]) for n in range(500)])
                wait_until(partial(followers[1].has, seen + 1), PATIENCE_S)
                scene.send([(f"k{n % 50}", [kill, n]) for n in range(500)])
                os.kill(worker.pid, signal.SIGKILL)
                worker.wait()
                worker = scene.start_worker()
            scene.settle(client)
            for follower in followers:
                wait_until(partial(follower.has, len(scene.records(follower.store))), PATIENCE_S)
        finally:
            for follower in followers:
                follower.done.set()
                follower.join()
        for follower in followers:
            check(follower, scene.records(follower.store))
            state = client.get(f"/v1/stores/{follower.store}/range?isolation_level=read_committed").json()
            assert {k: v for k, v in follower.values.items() if v is not None} == {
                entry["key"]: entry["value"] for entry in state["entries"]
            }


def check(follower: Follower, records: list[Record]) -> None:
    """Every record once, each partition's in order."""
    if follower.error is not None:
        raise follower.error
    assert follower.connections > 1
    for partition in range(PARTITIONS):
        given = [offset for p, offset in follower.places if p == partition]
        assert given == [record.offset for record in records if record.partition == partition]


@pytest.mark.parametrize(
    ("bootstrap", "store"),
    long_or_short(
        list(product(["embedded", "kafka"], ["counts", "memory"])), [("embedded", "memory"), ("kafka", "counts")]
    ),
    indirect=["bootstrap"],
)
def test_what_is_in_the_changelog_and_not_committed_is_not_given(
    bootstrap: str, log: Log, store: str, tmp_path: Path
) -> None:
    """As a worker leaves it that is killed between the two steps of its commit."""
    with Scene(bootstrap, log, tmp_path) as scene:
        worker = scene.start_worker()
        _, client = scene.start_server()
        scene.send([("a", 1)])
        position = Position.from_json(scene.settle(client, store))
        with reading(client, store, from_="earliest") as reader:
            assert [event.data["key"] for event in reader.take(1)] == ["a"]
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            write_commit(log, scene.topic(store), [b"left-behind"], position, partition=1)
            for _ in range(3):
                reader.beat()
            if store == "counts":  # its committed state can be read without the worker
                with reading(client, store, from_="earliest", partition="1") as late:
                    assert [event.data["key"] for event in late.take(1)] == ["a"]
                    late.beat()  # though both records came in one piece
            scene.start_worker()
            event = reader.take(1)[0]
            assert (event.data["key"], event.data["value"], event.data["partition"]) == ("left-behind", 7, 1)


# Ends


@on_one_log("embedded", "a server stops alike on both")
def test_a_server_that_stops_says_so(bootstrap: str, log: Log, tmp_path: Path) -> None:
    with Scene(bootstrap, log, tmp_path) as scene:
        scene.start_worker()
        server, client = scene.start_server()
        scene.send([("a", 1)])
        scene.settle(client)
        with reading(client, "counts", from_="earliest") as reader:
            reader.take(1)
            server.terminate()
            assert reader.end()["reason"] == "NOT_READY"
        assert server.wait(HANGING_S) == 0


@on_one_log("embedded", "either log tells another id of such a topic, as test_log_contract.py has it")
def test_a_topic_that_is_made_anew_ends_the_feed(bootstrap: str, log: Log, tmp_path: Path) -> None:
    with Scene(bootstrap, log, tmp_path) as scene:
        worker = scene.start_worker()
        _, client = scene.start_server()
        scene.send([("a", 1)])
        scene.settle(client)
        with reading(client, "counts", from_="earliest") as reader:
            last = reader.take(1)[0].id
            worker.terminate()
            worker.wait(HANGING_S)
            with closing(log.admin()) as admin:
                admin.delete_topics([scene.topic("counts")])
                admin.create_topics([NewTopic(scene.topic("counts"), PARTITIONS)])
            assert reader.end()["reason"] == "CURSOR_EXPIRED"
        answer = client.get("/v1/stores/counts/changes", headers={"Last-Event-ID": last})
        assert (answer.status_code, answer.json()["reason"]) == (410, "CURSOR_EXPIRED")


@on_one_log("embedded", "no log is asked")
def test_without_a_worker_there_is_nothing_to_read_yet(bootstrap: str, log: Log, tmp_path: Path) -> None:
    with Scene(bootstrap, log, tmp_path) as scene:
        _, client = scene.start_server()
        answer = client.get("/v1/stores/counts/changes")
        assert (answer.status_code, answer.json()["reason"]) == (503, "NOT_READY")


# Where to begin in the log


def write_commit(log: Log, topic: str, keys: list[bytes], position: Position, partition: int = 0) -> None:
    """A commit as a worker writes it: the last record carries the Position."""
    with closing(log.producer()) as producer:
        produce_commit(producer, topic, keys, position, partition)
        producer.flush()


def produce_commit(producer: Producer, topic: str, keys: list[bytes], position: Position, partition: int = 0) -> None:
    headers = (("v", b"\x00"), ("c", position.encode()))
    for n, key in enumerate(keys, 1):
        last = headers if n == len(keys) else ()
        producer.produce(topic, key, b"7", timestamp_ms=n, headers=last, partition=partition)


@pytest.fixture
def changelog(log: Log, request: pytest.FixtureRequest) -> str:
    """A changelog of 60 commits of 1 to 9 records; the n-th was made at offset 10 * n of its input, which goes on."""
    name = f"log-{abs(hash(request.node.nodeid))}"
    create(log, {name: 1, input_of(name): 1})
    chance = random.Random(5)
    with closing(log.producer()) as producer:
        for n in range(60):
            produce_commit(producer, name, [b"k"] * chance.randrange(1, 10), Position({input_of(name): {0: 10 * n}}))
        for n in range(INPUT_RECORDS):
            producer.produce(input_of(name), b"k", b"7", timestamp_ms=n, partition=0)
        producer.flush()
    return name


def input_of(changelog: str) -> str:
    """The topic that the records of this changelog came from."""
    return f"{changelog}-input"


def covered(records: list[Record], seen: Position) -> int:
    """The offset after the last commit that is covered, found by looking at each one."""
    ends = [r.offset for r in records if (at := position_of_changelog([r])) and PositionBound(at).is_met(seen, 0)]
    return max(ends, default=-1) + 1


@pytest.mark.parametrize("few", [4, 10_000])
def test_after_a_position_of_the_input_begins_the_first_commit_that_it_does_not_cover(
    log: Log, changelog: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_FEW_OFFSETS", few)
    records = read_all(log, changelog, 1)
    with closing(CommittedRecords(log, changelog, [0], Event())) as reader:
        for offset in (0, 5, 10, 299, 300, 301, 589, 590, INPUT_RECORDS - 1):
            seen = Position({input_of(changelog): {0: offset}})
            assert reader.begin(AfterInput(seen)) == {0: covered(records, seen)}
        assert reader.begin(AfterInput(Position())) == {0: 0}
        assert reader.begin(AfterInput(Position({"other": {0: 99}}), exactly=False)) == {0: 0}


def test_a_position_that_the_input_has_never_reached_is_refused(log: Log, changelog: str) -> None:
    source = input_of(changelog)
    end = len(read_all(log, changelog, 1))
    beyond = Position({source: {0: INPUT_RECORDS}})
    with closing(CommittedRecords(log, changelog, [0], Event())) as reader:
        # Read, and not yet committed: such positions have the answers at read_uncommitted.
        assert reader.begin(AfterInput(Position({source: {0: INPUT_RECORDS - 1}}))) == {0: end}
        for seen in (beyond, Position({source: {0: 2**62}})):
            with pytest.raises(
                CursorExpiredError, match=f"the last offset of {source}-0 is {INPUT_RECORDS - 1}\\. The top"
            ):
                reader.begin(AfterInput(seen))
        with pytest.raises(LogUnavailableError):  # it may be there again in a moment
            reader.begin(AfterInput(Position({"no-such-topic": {0: 0}})))
        assert reader.begin(AfterInput(beyond, exactly=False)) == {0: end}
        assert reader.begin(AfterInput(Position({source: {1: INPUT_RECORDS}}))) == {0: 0}  # nobody reads that partition


def test_an_offset_that_the_log_does_not_have_is_refused(log: Log, changelog: str) -> None:
    end = len(read_all(log, changelog, 1))
    with closing(CommittedRecords(log, changelog, [0], Event())) as reader:
        assert reader.begin(After({0: end - 1})) == {0: end}
        with pytest.raises(CursorExpiredError, match=f"offset {end + 5}, and the last offset of .* is {end - 1}\\. "):
            reader.begin(After({0: end + 5}))
        assert reader.begin(After({0: end + 5}, exactly=False)) == {0: end}


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([KafkaTopicPartition(topic, 0, offset)]).values():
        future.result(HANGING_S)


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_what_retention_has_deleted_is_not_passed_over(bootstrap: str, log: Log, changelog: str) -> None:
    records = read_all(log, changelog, 1)
    delete_before(bootstrap, changelog, 100)
    with closing(CommittedRecords(log, changelog, [0], Event())) as reader:
        assert reader.begin(After({}, exactly=False)) == {0: 100}
        assert reader.begin(After({0: 99})) == {0: 100}
        with pytest.raises(CursorExpiredError, match="begins at offset 100 now"):
            reader.begin(After({0: 98}))
        with pytest.raises(CursorExpiredError, match="begins at offset 100 now"):
            reader.begin(AfterInput(Position({input_of(changelog): {0: 10}})))
        assert reader.begin(AfterInput(Position({input_of(changelog): {0: 10}}), exactly=False)) == {0: 100}
        seen = Position({input_of(changelog): {0: 400}})
        assert reader.begin(AfterInput(seen)) == {0: covered(records, seen)}


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_what_is_deleted_in_front_of_a_reader_ends_its_feed(bootstrap: str, log: Log, changelog: str) -> None:
    end = len(read_all(log, changelog, 1))
    with closing(CommittedRecords(log, changelog, [0], Event())) as reader:
        reader.begin(After({0: end - 1}))
        reader.read(frozenset({0}))  # from here on nothing is fetched
        write_commit(log, changelog, [b"k"] * 20, Position({input_of(changelog): {0: 1000}}))
        delete_before(bootstrap, changelog, end + 10)
        with pytest.raises(CursorExpiredError, match=f"begins at offset {end + 10} now"):
            until(lambda: bool(reader.read(NOBODY)[0]))


def test_offsets_that_transactions_leave_out_are_no_loss(log: Log) -> None:
    create(log, {"gaps": 1})
    with closing(log.producer("writer")) as producer:
        producer.init_transactions()
        for n in range(3):
            producer.begin_transaction()
            producer.produce("gaps", b"k", b"%d" % n, timestamp_ms=n, partition=0)
            producer.commit_transaction()
    found: list[Record] = []
    with closing(CommittedRecords(log, "gaps", [0], Event())) as reader:
        reader.begin(After({}))
        while len(found) < 3:
            found += reader.read(NOBODY)[0]
    assert [record.value for record in found] == [b"0", b"1", b"2"]


def test_a_log_that_is_not_there_is_asked_for_again_and_its_thread_ends(tmp_path: Path) -> None:
    async def ask() -> None:
        config = load_config("app", overrides=[f"state.dir={tmp_path}"])
        log = ChangeLog(config, "nothing", [0], is_changelog=True)
        with pytest.raises(NotReadyError, match="no topic 'nothing' yet"):
            await log.begin(After({}))
        log.close()

    before = threading.active_count()
    asyncio.run(ask())
    wait_until(lambda: threading.active_count() <= before)


# The outbox


def test_events_wait_for_room_and_are_sent_in_order() -> None:
    async def fill() -> None:
        outbox = Outbox(10)
        await outbox.put(b"x" * 25)  # larger than all the room there is: alone it passes
        waiting = asyncio.create_task(outbox.put(b"123"))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await outbox.take(10) == b"x" * 25
        await waiting
        await outbox.put(b"456")  # beside the other there is room
        await outbox.finish(b"bye")
        assert [await outbox.take(10), await outbox.take(10)] == [b"123", b"456"]
        assert await outbox.take(10) is None
        assert outbox.last() == b"bye"

    asyncio.run(fill())


def test_silence_is_filled_with_heartbeats() -> None:
    async def wait() -> bytes | None:
        return await Outbox(10).take(0.01)

    assert asyncio.run(wait()) == HEARTBEAT


def test_line_breaks_in_data_do_not_break_an_event() -> None:
    data = {"value": orjson.Fragment(b'{\n "a":\r\n 1}')}
    lines = event_bytes(data, name="change", position=b"{}").split(b"\n")
    assert lines[:2] == [b"event: change", b"id: {}"]
    assert lines[-2:] == [b"", b""]
    assert all(line.startswith(b"data: ") for line in lines[2:-2])
    assert orjson.loads(b"\n".join(line[6:] for line in lines[2:-2])) == {"value": {"a": 1}}
