"""A key that an answer shows finds its row when it is sent back as it is: of every type, in every answer, over raw HTTP
and with both clients. The oracle is the bytes that were written.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
from pydantic import BaseModel

from stateline import App, SessionWindows, TumblingWindows, serdes
from stateline.client import Client, JsonKey
from stateline.log.embedded import EmbeddedLog
from stateline.serde.plain import Serde
from support.http.blocking import clients_of
from support.processes.query_server import wait_until
from support.processes.running_worker import configured, create, produce, running
from support.processes.served_here import served_here
from support.run.length import long_only

Connect = Callable[..., Client]
HOUR = timedelta(hours=1)
TIME_MS = 1_700_000_000_000


class Place(BaseModel):
    name: str


AVRO: Any = {"type": "record", "name": "Person", "fields": [{"name": "id", "type": "int"}]}
NANS = (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001)
LOWER = b"0198c0de-0000-7000-8000-0000000000ab"
KEYS: dict[str, tuple[Serde, list[bytes]]] = {
    "json": (serdes.json, [b'"x"', b"[1,2]", b"[1, 2]", b'{"a":1}', b'{ "a": 1 }', b"7", b"7.0", b"null", b"[\n1]"]),
    "float64": (
        serdes.float64,
        [struct.pack(">d", x) for x in (0.5, -0.0, 1e300, math.inf, -math.inf)] + [struct.pack(">Q", x) for x in NANS],
    ),
    "uuid": (serdes.uuid, [LOWER, LOWER.upper().replace(b"0198", b"0199"), LOWER.replace(b"0ab", b"0aB")]),
    "model": (serdes.model(Place), [b'{"name":"Bern"}', b'{ "name": "Ulm" }']),
    "msgpack": (serdes.msgpack, [b"\x01", b"\xd0\x02", b"\xa17", b"\x92\x01\x02", b"\xc4\x01a", b"\xc0"]),
    "avro": (serdes.avro(AVRO), []),
    "string": (serdes.string, ["", "7", "null", "NaN", "base64:AA", ".", "a/b", "é"]),  # type: ignore[list-item]
    "int64": (serdes.int64, [serdes.int64.serialize(x) for x in (-5, 2**63 - 1)]),
    "bytes": (serdes.bytes, [b"\xff\xfe", b"~~~"]),
    "datetime": (serdes.datetime, [serdes.int64.serialize(x) for x in (-1, 1_700_000_000_123)]),
}
NAMES = list(KEYS)


class Served(NamedTuple):
    http: httpx.Client
    keys: dict[str, list[bytes]]


def application() -> App:
    app = App("keys", config={"schema.registry.url": "mock://keys-of-answers"})
    for name, (serde, _) in KEYS.items():
        source = app.topic(name, key=serde, value=serdes.int64)
        app.table(source, store=name)
        app.table(f"{name}-old", key=serde, value=serdes.int64, store=f"{name}-old", versioned=HOUR)
        grouped = app.stream(source).group_by_key()
        grouped.count(f"{name}-count")
        grouped.windowed_by(TumblingWindows(HOUR)).count(f"{name}-win", retention=timedelta(days=1))
        grouped.windowed_by(SessionWindows(HOUR)).count(f"{name}-ses", retention=timedelta(days=1))
    return app


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("keys")
    app = application()
    bootstrap = f"embedded:{root / 'log.db'}"
    config = configured(app, root, **{"bootstrap.servers": bootstrap})
    keys = {name: [key if isinstance(key, bytes) else key.encode() for key in of] for name, (_, of) in KEYS.items()}
    keys["avro"] = [app.topology().topics_read()["avro"].key.serialize({"id": number}) for number in (1, 2)]
    topics = {each: 2 for name in NAMES for each in (name, f"{name}-old")}
    with closing(EmbeddedLog(root / "log.db")) as log:
        create(log, topics)
        with running(app, config, log), served_here(root, f"bootstrap.servers={bootstrap}", app=app) as here:
            for topic in topics:
                produce(
                    log, topic, [(key, (1).to_bytes(8, "big"), TIME_MS) for key in keys[topic.removesuffix("-old")]]
                )
            for name in NAMES:
                for store in stores_of(name):
                    wait_until(lambda store=store, name=name: count(here.client, store) == len(keys[name]))  # type: ignore[misc]
            yield Served(here.client, keys)


def stores_of(name: str) -> list[str]:
    return [name, f"{name}-old", f"{name}-count", f"{name}-win", f"{name}-ses"]


def path_of_all(store: str) -> str:
    kind = {"win": "windows", "ses": "sessions"}.get(store.rpartition("-")[2], "range")
    return f"/v1/stores/{quote(store)}/{kind}"


def count(http: httpx.Client, store: str) -> int:
    return len(http.get(path_of_all(store)).json()["entries"])


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    params=["asyncio", pytest.param("threads", marks=long_only("what a key is written as is the same code"))]
)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with clients_of(request.param) as connect:
        yield connect


@pytest.fixture
def client(served: Served, connect: Connect) -> Client:
    return connect(served.http.base_url, isolation_level="read_committed")


def bytes_of(store: Any, key: Any) -> list[Any]:
    """The keys of a range of this key alone."""
    return [entry.key for entry in store.range(lower=key, upper=key)]


def keys_in(batch: Any) -> list[Any]:
    keys: list[Any] = batch.column("key").to_pylist()
    return keys


def same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def test_every_key_of_a_range_is_found_by_itself_and_is_the_only_one(served: Served, client: Client, name: str) -> None:
    for store in (client.store(name), client.store(f"{name}-old"), client.store(f"{name}-count")):
        keys = [entry.key for entry in store.range(page_size=1)]
        assert len(keys) == len(served.keys[name])
        assert all(store.get(key).found for key in keys), keys
        many = store.get_many(keys)
        assert [each.found for each in many.entries] == [True] * len(keys)
        for key, each in zip(keys, many.entries, strict=True):
            assert same(each.key, key)
            assert same(store.get(key).key, key)
            assert len(bytes_of(store, key)) == 1


def test_every_key_of_windows_sessions_and_versions_is_found(served: Served, client: Client, name: str) -> None:
    keys = [entry.key for entry in client.store(f"{name}-win").all_windows(page_size=1)]
    assert [len(list(client.store(f"{name}-win").windows(key))) for key in keys] == [1] * len(served.keys[name])
    keys = [entry.key for entry in client.store(f"{name}-ses").all_sessions(page_size=1)]
    assert [len(list(client.store(f"{name}-ses").sessions(key))) for key in keys] == [1] * len(served.keys[name])
    keys = [entry.key for entry in client.store(f"{name}-old").range(as_of=TIME_MS)]
    assert [len(list(client.store(f"{name}-old").versions(key))) for key in keys] == [1] * len(served.keys[name])


def test_every_key_of_a_change_is_found(served: Served, client: Client, name: str) -> None:
    for store in (client.store(name), client.store(f"{name}-count")):
        with closing(store.changes(since="earliest")) as changes:
            keys = [change.key for change in islice(changes, len(served.keys[name]))]
        assert all(store.get(key).found for key in keys), keys


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("msgpack", "avro", "model")])
def test_every_key_of_a_snapshots_rows_is_found(served: Served, client: Client, name: str) -> None:
    """Of the others Arrow has JSON, which does not have all of their bytes."""
    store = client.store(name)
    with client.snapshot([name], ttl_s=60) as snapshot:
        for partition in range(2):
            batches = snapshot.read(name, partition)
            keys = [key for batch in batches for key in batch.column("key").to_pylist()]
            assert all(store.get(key).found for key in keys), keys
            assert all(each.found for key in keys for each in store.get_many([key]).entries), keys
            for at, key in enumerate(keys):
                found = [row for batch in snapshot.read(name, partition, keys=[key]) for row in keys_in(batch)]
                assert any(same(row, key) for row in found)
                assert len(found) == 1 or name == "uuid"  # in lower case there is another one
                assert sum(b.num_rows for b in snapshot.read(name, partition, after=key)) == len(keys) - at - 1, key


def test_over_raw_http_key_text_or_else_the_key_is_a_path_and_a_text_in_a_body(served: Served, name: str) -> None:
    for store in stores_of(name):
        answer = served.http.get(path_of_all(store)).json()
        lines = served.http.get(path_of_all(store), headers={"Accept": "application/x-ndjson"}).text.splitlines()
        assert sorted(map(str, map(json.loads, lines))) == sorted(map(str, answer["entries"]))
        for entry in answer["entries"]:
            text = entry.get("key_text", entry["key"] if isinstance(entry["key"], str) else json.dumps(entry["key"]))
            own, segment = f"/v1/stores/{store}/keys", quote(text, safe="").replace(".", "%2E")
            kind = {"win": "windows", "ses": "sessions"}.get(store.rpartition("-")[2])
            asked = {"type": kind or "key", "key": text, "keys_as": "text"}
            body = served.http.post(f"/v1/stores/{store}/query", json=asked).json()
            if kind is None:
                assert served.http.get(f"{own}/{segment}").json()["found"], text
                assert body["found"], text
            else:
                assert len(served.http.get(f"{own}/{segment}/{kind}").json()["entries"]) == 1, text
                assert len(body["entries"]) == 1, text


def test_keys_that_their_json_finds_have_no_text(served: Served) -> None:
    for name in ("string", "int64", "bytes", "datetime", "uuid"):
        assert not [e for e in served.http.get(f"/v1/stores/{name}/range").json()["entries"] if "key_text" in e]
    finite = [e for e in served.http.get("/v1/stores/float64/range").json()["entries"] if e["key"] is not None]
    assert len(finite) == 3
    assert not [e for e in finite if "key_text" in e]


def test_a_uuid_is_found_as_it_is_written_and_else_in_lower_case(served: Served, client: Client) -> None:
    for store in ("uuid", "uuid-old", "uuid-count"):
        uuids = client.store(store)
        answer = uuids.get(LOWER.decode().upper())
        assert (answer.found, answer.key) == (True, LOWER.decode())
        assert [e.found for e in uuids.get_many([LOWER.decode().upper(), LOWER.decode()]).entries] == [True, True]
        assert bytes_of(uuids, LOWER.decode().upper()) == [LOWER.decode()]
        assert not uuids.get("A" * 8 + LOWER.decode()[8:]).found
    assert len(list(client.store("uuid-win").windows(LOWER.decode().upper()))) == 1
    assert len(list(client.store("uuid-ses").sessions(LOWER.decode().upper()))) == 1
    assert len(list(client.store("uuid-old").versions(LOWER.decode().upper()))) == 1
    assert serdes.uuid.parse_text(LOWER.decode().replace("-", "").upper()) == LOWER


def test_lists_and_dicts_are_compact_json_and_json_keys_have_their_value(client: Client) -> None:
    store = client.store("json")
    assert store.get([1, 2]).key == JsonKey("[1,2]")
    assert store.get({"a": 1}).key == JsonKey('{"a":1}')
    assert {entry.key.text: entry.key.value for entry in store.range(prefix=JsonKey("7"))} == {"7": 7, "7.0": 7.0}
    assert JsonKey('{"a": [1]}').value == {"a": [1]}
