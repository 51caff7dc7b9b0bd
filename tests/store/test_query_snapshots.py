"""A scan is one snapshot with its Position, whatever is committed, expired, flushed and compacted meanwhile."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateline_store import (
    CountQuery,
    IsolationLevel,
    MultiVersionedKeyQuery,
    Order,
    Position,
    PositionQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    Reader,
    RetryLaterError,
    SecondaryReader,
    SessionKeyQuery,
    SessionRangeQuery,
    SessionStore,
    StoreClosedError,
    StoreContext,
    TimestampedRangeQuery,
    TransactionalStore,
    VersionedRangeQuery,
    WindowKeyQuery,
    WindowRangeQuery,
    notice_path,
    queries,
    store_path,
)
from store.query_oracles import KINDS, RETENTION, Put, materialized, oracle_of, random_query, write
from store.query_processes import INPUT, commit_puts
from support.rocksdb import database_of
from support.run.length import long_or_short

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
KEYS = [b"a", b"a\x00", b"b"]
SCANS: list[tuple[str, Query[Any]]] = [
    ("key_value", RangeQuery()),
    ("timestamped_key_value", RangeQuery(b"a")),
    ("timestamped_key_value", TimestampedRangeQuery(None, b"a\x01")),
    ("timestamped_key_value", PrefixQuery(b"a")),
    *(
        (kind, query)
        for kind in ("window", "timestamped_window", "window_with_duplicates")
        for query in (WindowKeyQuery(b"a"), WindowRangeQuery(None, 1_000, 70_000))
    ),
    ("session", WindowRangeQuery(b"a")),
    ("session", SessionKeyQuery(b"a", 1_000, 70_000)),
    ("timestamped_session", WindowRangeQuery(b"a")),
    ("session", SessionRangeQuery()),
    ("timestamped_session", SessionRangeQuery(1_000, 70_000)),
    ("versioned", MultiVersionedKeyQuery(b"a")),
    ("versioned", MultiVersionedKeyQuery(b"a", 1_000, 70_000)),
    ("versioned", VersionedRangeQuery()),
    ("versioned", VersionedRangeQuery(None, b"az", 30_000)),
]
FOLLOWED = long_or_short(4_000, 1_000)  # commits of the writer without a pause, at least
READERS = ["owner, committed", "owner, uncommitted", "secondary", "memory, committed", "memory, uncommitted"]


def rows_of(kind: str, count: int, *, value: bytes, first_ms: int = 0) -> list[Put]:
    """Writes over a minute and a quarter, so in several segments; key-value stores get as many keys, versioned ones
    besides keys of which some have two versions."""
    names = [b"%03d" % n if "key_value" in kind else b"" for n in range(count)]
    of_each = [[name, b"%03d" % (n % 240)] if kind == "versioned" else [name] for n, name in enumerate(names)]
    return [
        Put(KEYS[n % 3] + name, value, first_ms + n * 75_000 // count, 0, n)
        for n, some in enumerate(of_each)
        for name in some
    ]


@pytest.fixture(params=READERS)
def through(request: pytest.FixtureRequest) -> str:
    """The name of each reader in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=SCANS, ids=[f"{kind}-{type(query).__name__}-{n}" for n, (kind, query) in enumerate(SCANS)])
def scan(request: pytest.FixtureRequest) -> tuple[str, Query[Any]]:
    """Each scan of each kind of store in turn."""
    pair: tuple[str, Query[Any]] = request.param
    return pair


@pytest.fixture(params=[Order.ASCENDING, Order.DESCENDING])
def query(request: pytest.FixtureRequest, scan: tuple[str, Query[Any]]) -> Query[Any]:
    """That scan in both orders."""
    asked: Any = scan[1]  # a dataclass with an order, which `Query` alone does not say
    ordered: Query[Any] = replace(asked, order=request.param)
    return ordered


@pytest.fixture
def store(scan: tuple[str, Query[Any]], through: str, tmp_path: Path) -> Iterator[TransactionalStore]:
    store = KINDS[scan[0]](not through.startswith("memory"))
    store.init(StoreContext("0_0", tmp_path / "0_0"))
    yield store
    store.close()


def secondary(store: TransactionalStore, task: Path, scratch: Path) -> SecondaryReader:
    stamped = store.timestamped
    return SecondaryReader(
        store_path(task, "s", timestamped=stamped), notice_path(task, "s", timestamped=stamped), scratch
    )


@pytest.fixture
def reader(store: TransactionalStore, through: str, tmp_path: Path) -> Iterator[Reader]:
    if through != "secondary":
        yield store.reader(COMMITTED if through.endswith(", committed") else UNCOMMITTED)
        return
    found = secondary(store, tmp_path / "0_0", tmp_path / "scratch")
    yield found
    found.close()


def everything_changes(store: TransactionalStore, kind: str, reader: Reader) -> None:
    """Rows are deleted and replaced; new ones come in between; then time expires them all; flushes, compactions."""
    changes = [
        [put._replace(value=None if n % 2 else b"new") for n, put in enumerate(rows_of(kind, 300, value=b""))],
        rows_of(kind, 400, value=bytes(1000)),  # several memtables' worth
        rows_of(kind, 20, value=b"late", first_ms=20 * RETENTION),
    ]
    for number, puts in enumerate(changes, 10):
        for put in puts:
            write(store, put)
        store.commit({}, position=Position.of({INPUT: number}))
        if isinstance(reader, SecondaryReader):
            reader.refresh()
        if store.persistent:
            database_of(store).flush()
            database_of(store).compact_range(None, None)
    store.commit({}, position=Position.of({INPUT: 99}))
    if isinstance(reader, SecondaryReader):
        reader.refresh()


def test_a_scan_shows_the_state_at_its_position_to_its_end(
    store: TransactionalStore, reader: Reader, scan: tuple[str, Query[Any]], query: Query[Any]
) -> None:
    kind, oracle = scan[0], oracle_of(store)
    puts = rows_of(kind, 300, value=b"old")
    staged = [put._replace(value=None if n % 5 else b"staged") for n, put in enumerate(puts[len(puts) // 2 :])]
    for put in puts:
        write(store, put)
        oracle.put(put)
    store.commit({}, position=Position.of({INPUT: 1}))
    for put in staged:
        write(store, put)
        if reader.isolation_level is UNCOMMITTED:
            oracle.put(put)
    store.advance(Position.of({INPUT: 2}))
    if isinstance(reader, SecondaryReader):
        reader.refresh()

    expected = oracle.answer(query)
    found = queries.run(query, reader, store.schema)
    assert len(expected) > 40
    assert next(found.result) == expected[0]
    everything_changes(store, kind, reader)
    assert list(found.result) == expected[1:]
    assert found.position == Position.of({INPUT: 2 if reader.isolation_level is UNCOMMITTED else 1})
    anew = queries.run(query, reader, store.schema)
    assert list(anew.result) != expected
    assert anew.position == Position.of({INPUT: 99})


@pytest.mark.parametrize("through", ["owner, uncommitted", "memory, uncommitted"], indirect=True)
def test_a_scan_of_staged_rows_goes_on_after_their_rollback(
    store: TransactionalStore, reader: Reader, scan: tuple[str, Query[Any]], query: Query[Any]
) -> None:
    oracle = oracle_of(store)
    for put in rows_of(scan[0], 300, value=b"staged"):
        write(store, put)
        oracle.put(put)
    store.advance(Position.of({INPUT: 2}))
    expected = oracle.answer(query)
    found = queries.run(query, reader, store.schema)
    assert next(found.result) == expected[0]
    store.rollback()
    assert list(found.result) == expected[1:]
    assert found.position == Position.of({INPUT: 2})
    anew = queries.run(query, reader, store.schema)
    assert (list(anew.result), anew.position) == ([], Position())


def test_a_scan_that_a_close_cuts_off_says_so_and_never_looks_like_the_end(
    store: TransactionalStore, reader: Reader, scan: tuple[str, Query[Any]], query: Query[Any]
) -> None:
    """A secondary's scan, and that of a key's versions, hold what they show."""
    oracle = oracle_of(store)
    for put in rows_of(scan[0], 300, value=b"old"):
        write(store, put)
        oracle.put(put)
    store.commit({})
    if isinstance(reader, SecondaryReader):
        reader.refresh()
    expected = oracle.answer(query)
    found = queries.run(query, reader, store.schema).result
    assert next(found) == expected[0]
    store.close()
    if isinstance(reader, SecondaryReader):
        reader.close()
    if isinstance(reader, SecondaryReader) or isinstance(query, MultiVersionedKeyQuery):
        assert list(found) == expected[1:]
    else:
        with pytest.raises(StoreClosedError):
            list(found)


# -- a writer that commits without a pause ------------------------------------------------------------------


class Follower:
    """A secondary of another process's store, and the oracle at the Position that it is at."""

    def __init__(self, kind: str, task: Path, scratch: Path) -> None:
        self.store = KINDS[kind](True)  # never opened here: it knows the schema
        self.oracle = oracle_of(self.store)
        self.rnd = Random(kind)
        self.number = 0
        self.reader = secondary(self.store, task, scratch)

    def moved(self) -> bool:
        """Refresh; whether there was a commit. The oracle goes along."""
        self.reader.refresh()
        before, self.number = self.number, self.reader.position.get(*INPUT) or 0
        for number in range(before + 1, self.number + 1):
            for put in commit_puts(number):
                self.oracle.put(put)
        return self.number > before

    def ask(self) -> tuple[queries.QueryResult[Any], Any]:
        """An answer and what it must be."""
        kinds = [kind for kind in queries.answered_by(self.store.schema) if kind not in (CountQuery, PositionQuery)]
        now = max(0, self.number * 2_000)
        query = random_query(self.rnd, self.rnd.choice(kinds), [now, now - RETENTION], sessions=self.is_session)
        found = queries.run(query, self.reader, self.store.schema)
        assert found.position == Position.of({INPUT: self.number} if self.number else {})
        return found, self.oracle.answer(query)

    @property
    def is_session(self) -> bool:
        return isinstance(self.store, SessionStore)


def followed(kind: str, tmp_path: Path, writer: subprocess.Popen[bytes]) -> Follower:
    """A follower, as soon as the writer has made its store."""
    while True:
        assert writer.poll() is None
        try:
            return Follower(kind, tmp_path / "0_0", tmp_path / "scratch")
        except RetryLaterError:
            continue


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_during_commits_is_right_at_its_position(kind: str, tmp_path: Path) -> None:
    """Scans are finished only after the next commit has been read."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "store.query_processes", "write", kind, str(tmp_path / "0_0")],
        cwd=Path(__file__).parents[1],
    )
    try:
        follower = followed(kind, tmp_path, writer)
        rounds, has_flushed = 0, False  # a memtable, under the reader; what has expired may be gone again
        unfinished: list[tuple[queries.QueryResult[Any], Any]] = []
        while rounds < 30 or follower.number < FOLLOWED or not has_flushed:
            assert writer.poll() is None
            has_flushed = has_flushed or any(tmp_path.rglob("*.sst"))
            try:
                if not follower.moved():
                    continue
            except RetryLaterError:
                continue
            for found, expected in unfinished:
                assert materialized(found.result) == expected
            unfinished = [follower.ask() for _ in range(8)]
            rounds += 1
            if hasattr(follower.oracle, "forget"):
                follower.oracle.forget()
        follower.reader.close()
    finally:
        writer.kill()
        writer.wait()
