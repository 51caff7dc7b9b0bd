"""Both clients and the server's snapshots: made, read as Arrow, renewed, released."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from stateline.client import (
    Client,
    CursorExpiredError,
    DoesNotExistError,
    InvalidArgumentError,
    RetryLaterError,
    Session,
    Snapshot,
    UnreachableError,
)
from support.http.blocking import clients_of
from support.http.faulty_proxy import Cut, FaultyProxy
from support.processes.query_server import PARTITIONS, TIMESTAMP_MS, OwningWorker
from support.run.length import long_only

Connect = Callable[..., Client]


@pytest.fixture(params=["asyncio", pytest.param("threads", marks=long_only("test_client.py has both kinds"))])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with clients_of(request.param) as connect:
        yield connect


@pytest.fixture(autouse=True)
def entries(worker: OwningWorker) -> dict[str, Any]:
    found = {f"s-{number:04}": {"n": number} for number in range(300)}
    worker.put_all(found)
    worker.commit()
    return found


def rows(batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    return {
        row["key"]: json.loads(row["value"]) for batch in batches for row in batch.to_pylist()
    }  # JSON values are their text


def whole(snapshot: Snapshot, **arguments: Any) -> dict[str, Any]:
    parts = [rows(snapshot.read("aircraft", partition, **arguments)) for partition in range(PARTITIONS)]
    assert sum(map(len, parts)) == len({key for part in parts for key in part})
    return {key: value for part in parts for key, value in part.items()}


def test_a_snapshot_is_read_as_it_was_and_released_with_its_block(
    client: Client, worker: OwningWorker, entries: dict[str, Any]
) -> None:
    with client.snapshot(["aircraft"], ttl_s=60) as snapshot:
        worker.put("s-0000", "later")
        worker.commit()
        assert whole(snapshot, prefix="s-") == entries
        assert snapshot.position == client.open_snapshot(snapshot.details.id).position
        assert set(snapshot.details.stores["aircraft"]) == set(range(PARTITIONS))
        assert snapshot.details.id in {each.id for each in client.snapshots()}
    assert snapshot.details.id not in {each.id for each in client.snapshots()}
    with pytest.raises((CursorExpiredError, DoesNotExistError)):
        client.open_snapshot(snapshot.details.id)
    snapshot.release()


def test_rows_are_narrowed_to_columns_keys_and_times(client: Client, entries: dict[str, Any]) -> None:
    with client.snapshot(["aircraft"]) as snapshot:
        batches = list(snapshot.read("aircraft", 0, columns=["key", "timestamp"], prefix="s-"))
        assert batches
        assert {tuple(batch.schema.names) for batch in batches} == {("key", "timestamp")}
        assert whole(snapshot, lower="s-0010", upper="s-0012") == {key: entries[key] for key in sorted(entries)[10:13]}
        assert whole(snapshot, prefix="s-", after="s-0297") == {key: entries[key] for key in sorted(entries)[298:]}
        assert whole(snapshot, prefix="s-", time_to=TIMESTAMP_MS - 1) == {}
        with pytest.raises(InvalidArgumentError):
            list(snapshot.read("aircraft", 0, columns=["nothing"]))


def test_rows_of_many_keys_come_in_the_order_of_all_rows(client: Client, entries: dict[str, Any]) -> None:
    wanted = [*sorted(entries)[::7], "nobody"]
    with client.snapshot(["aircraft"]) as snapshot:
        assert whole(snapshot, keys=wanted) == {key: entries[key] for key in wanted[:-1]}
        assert whole(snapshot, keys=wanted, lower="s-0100") == {k: entries[k] for k in wanted[:-1] if k >= "s-0100"}
        for arguments in ({"keys": wanted}, {"prefix": "s-"}):
            everything = list(rows(snapshot.read("aircraft", 1, **arguments)))
            assert list(rows(snapshot.read("aircraft", 1, skip=5, **arguments))) == everything[5:]


def test_a_pin_is_one_snapshot_and_asked_for_again_when_an_answer_is_lost(proxy: FaultyProxy, connect: Connect) -> None:
    client, pin = connect(proxy.url), uuid4().hex
    proxy.faults.append(Cut(20))
    with client.snapshot(["aircraft"], pin=pin) as snapshot:
        assert client.snapshot(["aircraft"], pin=pin).details == snapshot.details
    with pytest.raises(CursorExpiredError):
        client.snapshot(["aircraft"], pin=pin)


def test_a_store_says_its_columns(client: Client) -> None:
    assert [(c.name, c.type, c.nullable) for c in client.store("aircraft").details().columns] == [
        ("key", "string", False),
        ("value", "string", False),
        ("timestamp", "int64", True),
    ]


def test_a_lease_is_renewed_from_now_on(client: Client) -> None:
    with client.snapshot(["aircraft"], ttl_s=10) as snapshot:
        before = snapshot.details.expires_at
        assert snapshot.renew(ttl_s=100).expires_at >= before + 80_000
        assert snapshot.details.expires_at > before
    with pytest.raises((CursorExpiredError, DoesNotExistError)):
        snapshot.renew()


def test_a_store_that_cannot_be_in_a_snapshot_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgumentError, match="cache"):
        client.snapshot(["cache"])
    with pytest.raises(DoesNotExistError):
        client.snapshot(["nope"])


def test_a_scan_comes_as_arrow_in_one_stream(client: Client, entries: dict[str, Any]) -> None:
    aircraft = client.store("aircraft")
    assert rows(aircraft.range(prefix="s-").batches()) == entries
    assert rows(aircraft.range(prefix="s-", limit=7).batches()) == {key: entries[key] for key in sorted(entries)[:7]}


def test_a_session_takes_in_what_a_stream_has_shown(client: Client) -> None:
    session = Session()
    store = client.store("aircraft", session=session)
    assert list(store.range(prefix="s-").batches())
    assert session.position("aircraft") == client.store("aircraft").position().position


def test_a_stream_that_breaks_off_is_told_and_never_taken_for_whole(
    proxy: FaultyProxy, connect: Connect, worker: OwningWorker
) -> None:
    for number in range(200):
        worker.put(f"big{number}", "x" * 5000)
    worker.commit()
    store = connect(proxy.url).store("aircraft")
    proxy.faults.append(Cut(200_000))
    with pytest.raises(UnreachableError):
        list(store.range(prefix="big").batches())
    assert sum(batch.num_rows for batch in store.range(prefix="big").batches()) == 200


def test_a_reader_that_leaves_early_lets_go_of_the_connection(client: Client, worker: OwningWorker) -> None:
    batches: Iterator[pa.RecordBatch] = client.store("aircraft").range(prefix="s-").batches()
    with closing(batches):  # type: ignore[type-var]  # both kinds of generator have it
        assert next(batches).num_rows
    assert client.store("aircraft").get("s-0001").found


def test_nobody_listens_to_a_snapshot_of_a_server_that_is_gone(server: httpx.URL) -> None:
    with Client(str(server)) as client:
        snapshot = client.snapshot(["aircraft"])
        gone = Client("http://127.0.0.1:1")
        with pytest.raises(RetryLaterError):
            gone.snapshot(["aircraft"])
        snapshot.release()
