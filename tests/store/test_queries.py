"""Queries as values: every query to every kind of store, through every reader, against plain oracles."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateline_store import (
    CountQuery,
    InvalidArgumentError,
    IsolationLevel,
    KeyQuery,
    KeysQuery,
    MultiVersionedKeyQuery,
    NotUpToBoundError,
    Position,
    PositionBound,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    Reader,
    SecondaryReader,
    SessionKeyQuery,
    SessionRangeQuery,
    StoreClosedError,
    StoreContext,
    StoreSchema,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    TopicPartition,
    TransactionalStore,
    UnknownQueryTypeError,
    ValueAndTimestamp,
    VersionedKeyQuery,
    VersionedKeysQuery,
    VersionedPrefixQuery,
    VersionedRangeQuery,
    VersionedRecord,
    Windowed,
    WindowKeyQuery,
    WindowRangeQuery,
    notice_path,
    queries,
    store_path,
)
from stateline_store.reads.plain_values import PlainValuesReader
from stateline_store.rows.timestamped_rows import split
from store.query_oracles import (
    END_OF_TIME,
    KINDS,
    SIZE,
    KeyValueOracle,
    Oracle,
    Put,
    materialized,
    oracle_of,
    random_puts,
    random_query,
    write,
)
from support.run.length import long_or_short
from support.run.patience import HANGING_S

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
INPUT, OTHER_PARTITION = TopicPartition("input", 0), TopicPartition("input", 1)
KEY_VALUE: set[type[Query[Any]]] = {KeyQuery, KeysQuery, RangeQuery, PrefixQuery}
ANSWERS: dict[str, set[type[Query[Any]]]] = {
    "key_value": KEY_VALUE,
    "timestamped_key_value": KEY_VALUE | {TimestampedKeyQuery, TimestampedRangeQuery},
    "window": {WindowKeyQuery, WindowRangeQuery},
    "timestamped_window": {WindowKeyQuery, WindowRangeQuery},
    "window_with_duplicates": {WindowKeyQuery, WindowRangeQuery},
    "session": {WindowRangeQuery, SessionKeyQuery, SessionRangeQuery},
    "timestamped_session": {WindowRangeQuery, SessionKeyQuery, SessionRangeQuery},
    "versioned": {
        *(VersionedKeyQuery, VersionedKeysQuery, MultiVersionedKeyQuery, VersionedRangeQuery, VersionedPrefixQuery)
    },
}
OF_EVERY_KIND: set[type[Query[Any]]] = {CountQuery, PositionQuery}
VALID: list[Query[Any]] = [
    KeyQuery(b"a"),
    TimestampedKeyQuery(b"a"),
    KeysQuery((b"a",)),
    RangeQuery(),
    TimestampedRangeQuery(),
    PrefixQuery(b"a"),
    WindowKeyQuery(b"a"),
    WindowRangeQuery(),
    SessionKeyQuery(b"a"),
    SessionRangeQuery(),
    VersionedKeyQuery(b"a"),
    VersionedKeysQuery((b"a",)),
    MultiVersionedKeyQuery(b"a"),
    VersionedRangeQuery(),
    VersionedPrefixQuery(b"a"),
]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
ASKED = long_or_short(150, 50)  # of each kind of query, in each scene
SECONDARY = "RocksDB, secondary"
READERS = {
    "RocksDB, committed": (True, COMMITTED),
    "RocksDB, uncommitted": (True, UNCOMMITTED),
    SECONDARY: (True, COMMITTED),
    "memory, committed": (False, COMMITTED),
    "memory, uncommitted": (False, UNCOMMITTED),
}


@dataclass
class Scene:
    """A store with committed and staged rows, one of its readers, and what that one must see."""

    store: TransactionalStore
    reader: Reader
    oracle: Oracle
    position: Position
    times: list[int]

    def ask(self, query: Query[Any], bound: PositionBound | None = None) -> queries.QueryResult[Any]:
        return queries.run(query, self.reader, self.store.schema, bound=bound)


@pytest.fixture(params=READERS)
def through(request: pytest.FixtureRequest) -> str:
    """The name of each reader in turn."""
    name: str = request.param
    return name


class Stage:
    """Makes scenes, and clears up."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stores: list[TransactionalStore] = []
        self.readers: list[SecondaryReader] = []

    def open(self, kind: str, through: str) -> TransactionalStore:
        store = KINDS[kind](READERS[through][0])
        store.init(StoreContext("0_0", self.directory / str(len(self.stores))))
        self.stores.append(store)
        return store

    def reader(self, store: TransactionalStore, through: str) -> Reader:
        if through != SECONDARY:
            return store.reader(READERS[through][1])
        task = self.directory / str(self.stores.index(store))
        stamped = store.timestamped
        self.readers.append(
            SecondaryReader(
                store_path(task, "s", timestamped=stamped),
                notice_path(task, "s", timestamped=stamped),
                self.directory / "scratch",
            )
        )
        return self.readers[-1]

    def scene(self, kind: str, through: str, committed: list[list[Put]], staged: list[Put]) -> Scene:
        """The Position says how many puts were committed, and staged."""
        store = self.open(kind, through)
        oracle = oracle_of(store)
        done = 0
        for puts in committed:
            for put in puts:
                write(store, put)
                oracle.put(put)
            done += len(puts)
            store.commit({}, position=Position.of({INPUT: done}))
        seen = deepcopy(oracle)
        for put in staged:
            write(store, put)
            oracle.put(put)
        store.advance(Position.of({INPUT: done + len(staged)} if staged else {}))
        if READERS[through][1] is UNCOMMITTED:
            seen, done = oracle, done + len(staged)
        times = [put.time for puts in [*committed, staged] for put in puts]
        position = Position.of({INPUT: done} if times else {})
        return Scene(store, self.reader(store, through), seen, position, times)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def random_scene(stage: Stage, kind: str, through: str, rnd: Random, *, first_ms: int) -> Scene:
    """Ten minutes of writes, of which the last fifth is staged."""
    puts = list(random_puts(rnd, 300, first_ms=first_ms, last_ms=first_ms + 600_000))
    return stage.scene(kind, through, [puts[n : n + 40] for n in range(0, 240, 40)], puts[240:])


# -- the matrix -----------------------------------------------------------------------------------------


@EVERY_KIND
@pytest.mark.parametrize("first_ms", [0, 1_795_259_814_382, END_OF_TIME - 600_000])
def test_every_answer_is_the_plain_oracles_at_its_position(
    stage: Stage, kind: str, through: str, first_ms: int
) -> None:
    rnd = Random(f"{kind} {first_ms}")
    scene = random_scene(stage, kind, through, rnd, first_ms=first_ms)
    assert isinstance(scene.oracle, KeyValueOracle) or scene.oracle.hidden > 0
    before = (scene.store.staged_records, scene.store.commit_number)
    for query_type in sorted(ANSWERS[kind], key=lambda query_type: query_type.__name__):
        empty = 0
        for _ in range(ASKED):
            query = random_query(rnd, query_type, scene.times, sessions=scene.store.kind == "session")
            found, expected = scene.ask(query), scene.oracle.answer(query)
            assert materialized(found.result) == expected, query
            assert found.position == scene.position
            empty += not expected and expected != b""
        assert 0 < empty < ASKED, query_type
    assert (scene.store.staged_records, scene.store.commit_number) == before


@EVERY_KIND
def test_an_empty_store_answers_with_nothing(stage: Stage, kind: str, through: str) -> None:
    scene = stage.scene(kind, through, [], [])
    for query_type in ANSWERS[kind]:
        query = random_query(Random(0), query_type, [0], sessions=scene.store.kind == "session")
        found = scene.ask(query)
        assert materialized(found.result) == scene.oracle.answer(query)
        assert not materialized(scene.ask(query).result)
        assert found.position == Position()


@EVERY_KIND
def test_empty_bytes_are_a_key_and_a_value_and_not_absence(stage: Stage, kind: str, through: str) -> None:
    scene = stage.scene(kind, through, [[Put(b"", b"", time=7, span=2, timestamp=3)]], [])
    value = ValueAndTimestamp(b"", 3) if scene.store.timestamped else b""
    expected: dict[type[Query[Any]], tuple[Query[Any], object]] = {
        KeyQuery: (KeyQuery(b""), b""),
        TimestampedKeyQuery: (TimestampedKeyQuery(b""), value),
        KeysQuery: (KeysQuery((b"", b"absent")), [(b"", value)]),
        RangeQuery: (RangeQuery(b"", b""), [(b"", b"")]),
        PrefixQuery: (PrefixQuery(b""), [(b"", value)]),
        TimestampedRangeQuery: (TimestampedRangeQuery(b"", b""), [(b"", value)]),
        WindowKeyQuery: (WindowKeyQuery(b""), [(7, value)]),
        WindowRangeQuery: (WindowRangeQuery(), [(Windowed(b"", 7, 7 + SIZE), value)]),
        SessionKeyQuery: (SessionKeyQuery(b""), [(Windowed(b"", 5, 7), value)]),
        SessionRangeQuery: (SessionRangeQuery(), [(Windowed(b"", 5, 7), value)]),
        VersionedRangeQuery: (VersionedRangeQuery(b"", b""), [(b"", VersionedRecord(b"", 7, None))]),
        VersionedPrefixQuery: (VersionedPrefixQuery(b"", 7), [(b"", VersionedRecord(b"", 7, None))]),
        VersionedKeyQuery: (VersionedKeyQuery(b"", 7), VersionedRecord(b"", 7, None)),
        VersionedKeysQuery: (VersionedKeysQuery((b"",)), [(b"", VersionedRecord(b"", 7, None))]),
        MultiVersionedKeyQuery: (MultiVersionedKeyQuery(b""), [VersionedRecord(b"", 7, None)]),
    }
    if scene.store.kind == "session":
        expected[WindowRangeQuery] = (WindowRangeQuery(b""), [(Windowed(b"", 5, 7), value)])
    for query_type in ANSWERS[kind]:
        query, answer = expected[query_type]
        assert materialized(scene.ask(query).result) == answer


@EVERY_KIND
def test_a_query_that_a_kind_of_store_cannot_answer_names_those_that_it_can(
    stage: Stage, kind: str, through: str
) -> None:
    scene = stage.scene(kind, through, [], [])
    able = ", ".join(sorted(query_type.__name__ for query_type in ANSWERS[kind] | OF_EVERY_KIND))
    unable = [query for query in VALID if type(query) not in ANSWERS[kind]]
    assert len(unable) + len(ANSWERS[kind]) == len(VALID)
    behind = PositionBound(Position.of({INPUT: 10**9}))  # no reason to say "ask again later"
    for query in unable:
        with pytest.raises(UnknownQueryTypeError, match=f"cannot answer a {type(query).__name__}; .*: {able}.$"):
            scene.ask(query, behind)


def test_a_query_of_somebody_elses_is_unknown(stage: Stage, through: str) -> None:
    class SumQuery(Query[int]):
        pass

    with pytest.raises(UnknownQueryTypeError, match="SumQuery"):
        stage.scene("key_value", through, [], []).ask(SumQuery())


@EVERY_KIND
def test_every_kind_says_about_how_many_rows_it_has_and_where_it_stands(stage: Stage, kind: str, through: str) -> None:
    scene = stage.scene(kind, through, [[Put(b"a", b"1", time=7, span=2, timestamp=3)]], [])
    counted, stood = scene.ask(CountQuery()), scene.ask(PositionQuery())
    assert counted.result == 1
    assert (stood.result, stood.position, counted.position) == (None, scene.position, scene.position)


@EVERY_KIND
def test_what_is_asked_for_as_stored_is_the_same_with_each_timestamp_before_its_value(
    stage: Stage, kind: str, through: str
) -> None:
    """As every request over HTTP is run: what passes answers on takes them apart where they are shown."""
    rnd = Random(f"stored {kind}")
    scene = random_scene(stage, kind, through, rnd, first_ms=0)
    schema = scene.store.schema.of_stored_values()
    for query_type in sorted(ANSWERS[kind], key=lambda query_type: query_type.__name__):
        for _ in range(30):
            query = random_query(rnd, query_type, scene.times, sessions=scene.store.kind == "session")
            if query_type not in (TimestampedKeyQuery, TimestampedRangeQuery):
                stored = materialized(queries.run(query, scene.reader, schema).result)
                assert shown(stored, query, timestamped=scene.store.timestamped) == scene.oracle.answer(query)


def shown(stored: Any, query: Query[Any], *, timestamped: bool) -> Any:
    """Stored values as the query shows them."""
    if not timestamped or stored is None:
        return stored
    if isinstance(query, KeyQuery):
        return split(stored).value
    return [(name, split(value).value if isinstance(query, RangeQuery) else split(value)) for name, value in stored]


def test_a_query_of_keys_is_refused_as_soon_as_their_values_are_too_large(stage: Stage, through: str) -> None:
    puts = [Put(bytes([n]), bytes(100), time=n, span=0, timestamp=n) for n in range(5)]
    keys = tuple(put.key for put in puts)
    for kind, query_type in (("key_value", KeysQuery), ("versioned", VersionedKeysQuery)):
        scene = stage.scene(kind, through, [puts], [])
        assert len(scene.ask(query_type(keys, most_bytes=5 * 101)).result) == 5
        with pytest.raises(InvalidArgumentError, match="have more than 303 bytes: ask for fewer keys"):
            scene.ask(query_type(keys, most_bytes=2 * 101))


def test_a_range_of_exchanged_bounds_finds_nothing_and_warns(
    stage: Stage, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = stage.scene("key_value", through, [[Put(b"b", b"1", time=0, span=0, timestamp=0)]], [])
    assert materialized(scene.ask(RangeQuery(b"c", b"a")).result) == []
    assert "lower bound b'c' above upper bound b'a'" in caplog.text


# -- bounds ---------------------------------------------------------------------------------------------


def bound(topic: str = "input", **offsets: int) -> PositionBound:
    return PositionBound(Position.of({TopicPartition(topic, int(name[1:])): at for name, at in offsets.items()}))


@EVERY_KIND
def test_a_bound_is_checked_against_the_position_that_the_reader_sees(stage: Stage, kind: str, through: str) -> None:
    put = Put(b"a", b"1", time=7, span=2, timestamp=3)
    scene = stage.scene(kind, through, [[put, put]], [put])
    seen = 3 if READERS[through][1] is UNCOMMITTED else 2
    for query in VALID:
        if type(query) not in ANSWERS[kind]:
            continue
        if scene.store.kind == "session":
            query = WindowRangeQuery(b"a")
        met = [PositionBound(), bound(p0=0), bound(p0=seen), bound(p0=seen, p1=10**9), bound("unseen", p1=1)]
        for enough in met:
            found = scene.ask(query, enough)
            assert found.position == Position.of({INPUT: seen})
            assert materialized(found.result) == scene.oracle.answer(query)
        for too_much in (bound(p0=seen + 1), bound("unseen", p0=0), bound("unseen", p0=0, p1=0)):
            with pytest.raises(NotUpToBoundError, match=f"{{'input': {{'0': {seen}}}}}.*ask again"):
                scene.ask(query, too_much)


def test_a_bound_is_checked_for_the_tasks_own_partition(stage: Stage, through: str) -> None:
    store = stage.open("key_value", through)
    store.commit({}, position=Position.of({INPUT: 9, OTHER_PARTITION: 5}))
    reader = stage.reader(store, through)
    for partition, offset in ((0, 9), (1, 5)):
        own = PositionBound(Position.of({TopicPartition("input", partition): offset + 1}))
        with pytest.raises(NotUpToBoundError, match=f"Partition {partition} is"):
            queries.run(KeyQuery(b"a"), reader, store.schema, bound=own, partition=partition)
        queries.run(KeyQuery(b"a"), reader, store.schema, bound=own, partition=1 - partition)


# -- values that cannot be used ---------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("key_value", KeyQuery("a"), "key of a KeyQuery is bytes, not 'a'"),  # type: ignore[arg-type]  # the point
    ("key_value", KeyQuery(None), "key of a KeyQuery is bytes, not None"),  # type: ignore[arg-type]  # the point
    ("key_value", RangeQuery(1), "lower of a RangeQuery is bytes or None, not 1"),  # type: ignore[arg-type]  # the point
    ("key_value", RangeQuery(None, "z"), "upper of a RangeQuery"),  # type: ignore[arg-type]  # the point
    ("key_value", RangeQuery(order="up"), "order of a RangeQuery is an Order, not 'up'"),  # type: ignore[arg-type]  # the point
    ("key_value", KeysQuery([b"a"]), "keys of a KeysQuery is a tuple of bytes, not"),  # type: ignore[arg-type]  # the point
    ("key_value", PrefixQuery(None), "prefix of a PrefixQuery is bytes, not None"),  # type: ignore[arg-type]  # the point
    ("timestamped_key_value", TimestampedKeyQuery(bytearray()), "key of a T"),  # type: ignore[arg-type]  # the point
    ("timestamped_key_value", TimestampedRangeQuery("a"), "lower of a T"),  # type: ignore[arg-type]  # the point
    ("window", WindowKeyQuery(7), "key of a WindowKeyQuery is bytes, not 7"),  # type: ignore[arg-type]  # the point
    ("window", WindowKeyQuery(b"a", 1.5), "time_from .* is milliseconds or None, not 1.5"),  # type: ignore[arg-type]  # the point
    ("window", WindowKeyQuery(b"a", 1, "2"), "time_to .* is milliseconds or None, not '2'"),  # type: ignore[arg-type]  # the point
    ("window", WindowRangeQuery(b"a"), "of a window store takes time_from and time_to, not a key"),
    ("window", WindowRangeQuery(b"a", 1, 2), "of a window store takes time_from and time_to, not a key"),
    ("window", WindowRangeQuery(order=None), "order of a WindowRangeQuery"),  # type: ignore[arg-type]  # the point
    ("session", WindowRangeQuery(), "of a session store takes a key, and no times"),
    ("session", WindowRangeQuery(b"a", 1), "of a session store takes a key, and no times"),
    ("session", WindowRangeQuery(b"a", None, 1), "of a session store takes a key, and no times"),
    ("session", WindowRangeQuery("a"), "key of a WindowRangeQuery is bytes, not 'a'"),  # type: ignore[arg-type]  # the point
    ("versioned", VersionedKeyQuery("a"), "key of a VersionedKeyQuery"),  # type: ignore[arg-type]  # the point
    ("versioned", VersionedKeyQuery(b"a", "1"), "as_of of a VersionedKeyQuery"),  # type: ignore[arg-type]  # the point
    ("versioned", MultiVersionedKeyQuery(b"a", "1"), "time_from of a M"),  # type: ignore[arg-type]  # the point
    ("versioned", MultiVersionedKeyQuery(b"a", 1, 2.0), "time_to of a M"),  # type: ignore[arg-type]  # the point
]


@pytest.mark.parametrize(("kind", "query", "message"), WRONG, ids=[f"{kind}-{query}" for kind, query, _ in WRONG])
def test_a_value_that_cannot_be_used_is_refused_whatever_the_bound(
    stage: Stage, kind: str, through: str, query: Query[Any], message: str
) -> None:
    scene = stage.scene(kind, through, [], [])
    with pytest.raises(InvalidArgumentError, match=message):
        scene.ask(query, bound(p0=10**9))


def test_a_schema_without_segments_is_refused_where_they_are_needed(stage: Stage) -> None:
    reader = stage.open("window", "memory, committed").reader(COMMITTED)
    with pytest.raises(InvalidArgumentError, match="needs `segments`"):
        queries.run(WindowKeyQuery(b"a"), reader, StoreSchema("window"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("timestamped")])
def test_a_timestamped_store_in_the_plain_format_answers_with_unknown_timestamps(kind: str, tmp_path: Path) -> None:
    """While an upgrade is under way (KIP-258): the owner, and a secondary of the plain files."""
    store = KINDS[kind](True)
    store.init(StoreContext("0_0", tmp_path, plain_format=True))
    oracle, rnd, times = oracle_of(store), Random(kind), []
    for put in random_puts(rnd, 200, first_ms=0, last_ms=200_000):
        write(store, put)
        oracle.put(put._replace(timestamp=-1))
        times.append(put.time)
    store.commit({})
    store_files, notice = (path(tmp_path, "s", timestamped=False) for path in (store_path, notice_path))
    secondary = SecondaryReader(store_files, notice, tmp_path / "scratch")
    for query_type in ANSWERS[kind]:
        for _ in range(30):
            query = random_query(rnd, query_type, times, sessions=store.kind == "session")
            for reader in (store.reader(COMMITTED), PlainValuesReader(secondary)):
                assert materialized(queries.run(query, reader, store.schema).result) == oracle.answer(query)
    secondary.close()
    store.close()


# -- other processes, closed stores -----------------------------------------------------------------------


@EVERY_KIND
def test_another_process_answers_the_same(stage: Stage, kind: str, tmp_path: Path) -> None:
    """Query and schema go to it as values, pickled."""
    rnd = Random(kind)
    scene = random_scene(stage, kind, SECONDARY, rnd, first_ms=0)
    asked = [
        random_query(rnd, query_type, scene.times, sessions=scene.store.kind == "session")
        for query_type in ANSWERS[kind]
        for _ in range(50)
    ]
    stamped = scene.store.timestamped
    paths = [path(tmp_path / "0", "s", timestamped=stamped) for path in (store_path, notice_path)]
    process = subprocess.run(
        [sys.executable, "-m", "store.query_processes", "answer", *map(str, paths), str(tmp_path / "far")],
        cwd=Path(__file__).parents[1],
        input=pickle.dumps([(query, scene.store.schema) for query in asked]),
        capture_output=True,
        timeout=HANGING_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    for query, (result, position) in zip(asked, pickle.loads(process.stdout), strict=True):
        assert result == scene.oracle.answer(query), query
        assert position == scene.position


@EVERY_KIND
def test_a_query_to_a_closed_store_is_an_error_and_not_empty(stage: Stage, kind: str, through: str) -> None:
    scene = stage.scene(kind, through, [], [])
    stage.close()
    for query_type in ANSWERS[kind]:
        query = random_query(Random(1), query_type, [0], sessions=scene.store.kind == "session")
        with pytest.raises(StoreClosedError):
            materialized(scene.ask(query).result)
