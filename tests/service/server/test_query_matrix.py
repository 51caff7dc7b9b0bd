"""Every kind of store, every query, both isolation levels, every bound: real processes over both logs, and an oracle.

Whatever is answered is compared with what the records up to the answer's own position make of the store.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from stateline.serde.partitioner import home_partition
from support.apps.kinds_app import Event
from support.apps.matrix_app import COPIES, IN_MEMORY, PARTITIONS, Deployment
from support.oracles.matrix_oracle import KEY_VALUE, SESSION, VERSIONED, WINDOW, Case, Json, Seen, cases, found
from support.processes.query_server import wait_until
from support.run.length import long_or_short

BASE_MS = (time.time_ns() // 1_000_000 // 3_600_000 - 2) * 3_600_000
KEYS = [f"k{n}" for n in range(13)]
KEY_OF = {p: next(key for key in KEYS if home_partition(key.encode(), PARTITIONS) == p) for p in range(PARTITIONS)}
EVENTS = 180
EARLY_MS, LATE_MS, NOW_MS = BASE_MS + 300_000, BASE_MS + 500_000, BASE_MS + 2 * EVENTS * 2_000
LEVELS = {"read_committed": "committed", "read_uncommitted": "uncommitted"}
NEVER_MS = 3_600_000  # a commit interval that no test lives to see
ANSWERABLE = {
    KEY_VALUE: ("key", "keys", "range"),
    WINDOW: ("windows",),
    SESSION: ("sessions",),
    VERSIONED: ("key", "keys", "range", "versions"),
}


def named(store: str, case: Case) -> str:
    """The same every time, or else processes that share the tests would not know them by the same names."""
    shown = f"{store}{case}"
    for name, time_ms in (("early", EARLY_MS), ("late", LATE_MS), ("now", NOW_MS)):
        shown = shown.replace(str(time_ms), name)
    return shown


CASES = [
    pytest.param(f"{store}{copy}", case, id=named(f"{store}{copy}", case))
    for copy in COPIES
    for kind in (KEY_VALUE, WINDOW, SESSION, VERSIONED)
    for store in kind
    for case in cases(kind, EARLY_MS, LATE_MS, NOW_MS)
]

# The first case of each path: what parameters do not change is tried with these.
ONE_OF_EACH = [
    pytest.param(f"{store}{copy}", case, id=named(f"{store}{copy}", case))
    for copy in COPIES
    for kind in (KEY_VALUE, WINDOW, SESSION, VERSIONED)
    for store in kind
    for case in {each.path: each for each in cases(kind, EARLY_MS, LATE_MS, NOW_MS)[::-1]}.values()
]
IN_MEMORY_AT = long_or_short([*LEVELS], ["read_uncommitted"])  # the worker answers at both


def at_each_level(asked: list[Any]) -> list[Any]:
    """These at the levels that their store is asked at."""
    found = []
    for each in asked:
        store, case = each.values
        levels = IN_MEMORY_AT if store.endswith(IN_MEMORY) else [*LEVELS]
        found += [pytest.param(store, case, level, id=f"{each.id}-{level}") for level in levels]
    return found


IN_PAGES = [each for each in ONE_OF_EACH if each.values[1].body["type"] not in ("key", "keys")]  # type: ignore[union-attr]  # a case


def events(count: int, first: int = 0) -> list[Event]:
    """Two seconds apart: some out of order, some far too late, some deletes."""
    chance = random.Random(first)
    made: list[Event] = []
    for n in range(first, first + count):
        back = chance.choices([0, chance.randrange(100_000), chance.randrange(600_000)], [7, 2, 1])[0]
        value = None if chance.random() < 0.15 else n
        made.append((chance.choice(KEYS), value, max(BASE_MS, BASE_MS + n * 2_000 - back)))
    return made


class Scene:
    """Some records are committed, and as many again are staged on top."""

    def __init__(self, root: Path, servers: str) -> None:
        self.deployment = Deployment(root, servers, uuid4().hex[:8])
        self._stack, self._worker = ExitStack(), ExitStack()
        self.client = self._stack.enter_context(self.deployment.server(server__wait__max__ms=600_000))
        self.deployment.send(events(EVENTS))
        with self.deployment.worker(commit__interval__ms=50):
            self.deployment.wait_for(self.client, "committed", self.deployment.history.ends())
        self.committed = self.deployment.history.ends()
        self.start_worker()
        self.deployment.send(events(EVENTS, EVENTS))
        self.deployment.wait_for(self.client, "uncommitted", self.deployment.history.ends())
        self.deployment.wait_for(self.client, "committed", self.committed)

    def ends(self, level: str) -> dict[int, int]:
        """How far each partition has come at this level."""
        return self.committed if level == "read_committed" else self.deployment.history.ends()

    def start_worker(self) -> None:
        """A worker that commits when it is stopped."""
        self._worker.enter_context(self.deployment.worker(commit__interval__ms=NEVER_MS))

    def stop_worker(self) -> None:
        self._worker.close()

    def close(self) -> None:
        self._worker.close()
        self._stack.close()
        self.deployment.log.close()

    def get(self, store: str, case: Case, key: str, **params: Any) -> httpx.Response:
        """The answer by URL; by body where there is no URL."""
        if not case.path:
            return self.post(store, case, key, **params)
        path = case.path.replace("{key}", key)
        bound = {"position_bound": json.dumps(params.pop("position_bound"))} if "position_bound" in params else {}
        return self.client.get(f"/v1/stores/{store}{path}", params=case.params | params | bound)

    def post(self, store: str, case: Case, key: str, **params: Any) -> httpx.Response:
        """The answer by body."""
        named: Json = {"keys": [key, "absent"]} if case.body["type"] == "keys" else {}
        if "{key}" in case.path:
            named = {"key": key}
        return self.client.post(f"/v1/stores/{store}/query", json=case.body | named | params)

    def offsets(self, answer: Json) -> dict[int, int]:
        """Where each partition stood that has part in the answer."""
        topic = self.deployment.topic
        return {int(p): each["position"][topic][p] for p, each in answer["partitions"].items()}

    def check(self, response: httpx.Response, store: str, case: Case, key: str, level: str) -> Json:
        """It is what the oracle says at the position that it carries."""
        answer: Json = response.json()
        offsets = self.offsets(answer)
        oracles = {p: self.deployment.history.at(p, offset) for p, offset in offsets.items()}
        wanted = case.finds(Seen(store.removesuffix(IN_MEMORY), oracles), key)
        if isinstance(wanted, list):
            assert answer["entries"] == wanted
        else:
            assert {name: answer[name] for name in wanted} == wanted
            assert response.status_code == (200 if wanted["found"] else 404)
        assert (answer["store"], answer["isolation_level"]) == (store, level)
        merged = {self.deployment.topic: {str(p): offset for p, offset in offsets.items()}}
        assert answer["position"] == merged
        assert "failures" not in answer
        return answer


# Which log it is makes no difference once the stores have their records, and test_changes.py waits for bounds on Kafka.
@pytest.fixture(scope="module", params=long_or_short(["embedded", "kafka"], ["embedded"]))
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    kafka = request.param == "kafka"
    servers = request.getfixturevalue("kafka_broker").bootstrap_servers if kafka else ""
    made = Scene(tmp_path_factory.mktemp("m"), servers)
    yield made
    made.close()


@pytest.mark.parametrize(("store", "case", "level"), at_each_level(CASES))
def test_an_answer_is_what_the_records_up_to_its_position_make(
    scene: Scene, store: str, case: Case, level: str
) -> None:
    home, key = random.Random(str(case)).choice(sorted(KEY_OF.items()))
    answer = scene.check(scene.get(store, case, key, isolation_level=level), store, case, key, level)
    assert scene.offsets(answer).items() <= scene.ends(level).items()
    assert str(home) in answer["partitions"]
    posted = scene.check(scene.post(store, case, key, isolation_level=level), store, case, key, level)
    assert posted | {"cursor": None} == answer | {"cursor": None}


@pytest.mark.parametrize(("store", "case", "level"), at_each_level(ONE_OF_EACH))
def test_a_bound_is_met_or_412_with_where_the_partition_stands(
    scene: Scene, store: str, case: Case, level: str
) -> None:
    topic, ends = scene.deployment.topic, scene.ends(level)
    for home, key in KEY_OF.items():
        there = {topic: {str(p): end for p, end in ends.items()}}
        met = scene.get(store, case, key, isolation_level=level, position_bound=there, wait_ms=1)
        scene.check(met, store, case, key, level)
        for bound, wait_ms in (({topic: {str(home): ends[home] + 1}}, 1), ({"elsewhere": {str(home): 0}}, 60_000)):
            asked: Json = {"isolation_level": level, "position_bound": bound, "wait_ms": wait_ms, "partition": home}
            refused = scene.get(store, case, key, **asked)
            problem = refused.json()
            assert (refused.status_code, problem["reason"]) == (412, "NOT_UP_TO_BOUND")
            assert (problem["store"], problem["partition"], problem["bound"]) == (store, home, bound)
            assert problem["position"] == {topic: {str(home): ends[home]}}


@pytest.mark.parametrize(("store", "case", "level"), at_each_level(IN_PAGES))
def test_all_pages_and_the_stream_in_order_are_the_one_answer(scene: Scene, store: str, case: Case, level: str) -> None:
    assert "limit" not in case.params
    whole = scene.get(store, case, KEY_OF[1], isolation_level=level).json()
    page = scene.get(store, case, KEY_OF[1], isolation_level=level, limit=3).json()
    found = [*page["entries"]]
    while "cursor" in page:
        page = scene.client.get(f"/v1/stores/{store}/range", params={"cursor": page["cursor"]}).json()
        found += page["entries"]
        assert page["position"] == whole["position"]
    assert found == whole["entries"]
    path = f"/v1/stores/{store}{case.path.replace('{key}', KEY_OF[1])}"
    asked = case.params | {"isolation_level": level}

    def lines(**more: str) -> list[Json]:
        stream = scene.client.get(path, params=asked | more, headers={"accept": "application/x-ndjson"})
        return [json.loads(line) for line in stream.text.splitlines()]

    usual = case.params.get("order") or ("desc" if case.body["type"] == "versions" else "asc")
    assert lines(order=usual) == whole["entries"]
    assert sorted(map(json.dumps, lines())) == sorted(map(json.dumps, whole["entries"]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("copy", COPIES)
def test_times_are_understood_as_iso_8601_too(scene: Scene, copy: str, level: str) -> None:
    def iso(ms: int) -> str:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat()

    for store, kind in (("counts", WINDOW), ("visits", SESSION), ("history", VERSIONED)):
        for case in cases(kind, EARLY_MS, LATE_MS, NOW_MS):
            times = {name: iso(case.params[name]) for name in ("from", "to", "as_of") if name in case.params}
            written = Case(case.path, case.body | times, case.finds, case.params | times)
            for ask in (scene.get, scene.post):
                response = ask(f"{store}{copy}", written, KEY_OF[1], isolation_level=level)
                scene.check(response, f"{store}{copy}", written, KEY_OF[1], level)


@pytest.mark.parametrize("copy", COPIES)
def test_many_versioned_keys_are_looked_up_at_once_as_of_a_time(scene: Scene, copy: str) -> None:
    for as_of in (None, EARLY_MS, LATE_MS):
        body = {"type": "keys", "keys": [*KEYS, "absent"], "as_of": as_of, "isolation_level": "read_uncommitted"}
        answer = scene.client.post(f"/v1/stores/table{copy}/query", json=body).json()
        seen = Seen("table", {p: scene.deployment.history.at(p, end) for p, end in scene.offsets(answer).items()})
        wanted = [found(key, seen.as_of(key, as_of), versioned=True) for key in [*KEYS, "absent"]]
        assert answer["entries"] == wanted


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("kind", ANSWERABLE, ids=lambda kind: kind[0])
def test_a_kind_refuses_the_other_queries_and_says_what_it_can(
    scene: Scene, kind: tuple[str, ...], copy: str, level: str
) -> None:
    paths = {"range": "/range", "windows": "/windows", "key": "/keys/k1"}
    paths |= {name: f"/keys/k1/{name}" for name in ("windows", "versions")} | {"sessions": "/sessions"}
    bodies: dict[str, Json] = {name: {"type": name, "key": "k1"} for name in ("key", "windows", "sessions", "versions")}
    bodies |= {"keys": {"type": "keys", "keys": ["k1"]}, "range": {"type": "range"}}
    for store in (f"{name}{copy}" for name in kind):
        for name in bodies.keys() - set(ANSWERABLE[kind]):
            asked = [scene.client.post(f"/v1/stores/{store}/query", json=bodies[name] | {"isolation_level": level})]
            if name in paths:
                asked.append(scene.client.get(f"/v1/stores/{store}{paths[name]}", params={"isolation_level": level}))
            for refused in asked:
                assert (refused.status_code, refused.json()["reason"]) == (400, "UNKNOWN_QUERY_TYPE"), name
                assert f"ask for {', '.join(ANSWERABLE[kind])} or count" in refused.json()["detail"]
        if kind is KEY_VALUE:
            then = scene.client.get(f"/v1/stores/{store}/range", params={"isolation_level": level, "as_of": EARLY_MS})
            assert (then.status_code, then.json()["reason"]) == (400, "UNKNOWN_QUERY_TYPE")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("copy", COPIES)
def test_every_kind_counts_its_entries(scene: Scene, copy: str, level: str) -> None:
    for store in (*KEY_VALUE, *WINDOW, *SESSION, *VERSIONED):
        params = {"isolation_level": level}
        answer = scene.client.get(f"/v1/stores/{store}{copy}/count", params=params).json()
        assert answer["approximate_entries"] > 0
        if store in KEY_VALUE and copy == IN_MEMORY and level == "read_committed":
            oracles = {p: scene.deployment.history.at(p, end) for p, end in scene.offsets(answer).items()}
            assert answer["approximate_entries"] == len(Seen(store, oracles).pairs())
        exact = scene.client.get(f"/v1/stores/{store}{copy}/count", params=params | {"exact": "true"}).json()
        oracles = {p: scene.deployment.history.at(p, end) for p, end in scene.offsets(exact).items()}
        seen = Seen(store, oracles)
        if store in VERSIONED:
            assert exact["exact_entries"] > 0
        elif store in WINDOW:
            assert exact["exact_entries"] == len(seen.windows(None))
        elif store in SESSION:
            assert exact["exact_entries"] == len(seen.sessions(None))
        else:
            assert exact["exact_entries"] == len(seen.pairs())


def test_whoever_waits_is_answered_when_the_bound_is_met(scene: Scene) -> None:
    """Uncommitted state when the records are processed, committed state when the worker has gone, or has come back."""
    ends = scene.deployment.history.ends()
    bound = {scene.deployment.topic: {str(p): end + 1 for p, end in ends.items()}}
    waiting: list[tuple[str, str, Case, str]] = [
        (level, f"{kind[0]}{copy}", case, KEY_OF[n % PARTITIONS])
        for level in LEVELS
        for copy in COPIES
        for kind in ANSWERABLE
        for n, case in enumerate(cases(kind, EARLY_MS, LATE_MS, NOW_MS)[:3])
    ]

    def ask(level: str, store: str, case: Case, key: str) -> httpx.Response:
        return scene.get(store, case, key, isolation_level=level, position_bound=bound, wait_ms=600_000)

    with ThreadPoolExecutor(len(waiting)) as threads:
        asked = [threads.submit(ask, *each) for each in waiting]
        gauge = "stateline_http_requests_in_progress "
        wait_until(lambda: _metric(scene.client, gauge) > len(waiting))
        scene.deployment.send(events(EVENTS, 2 * EVENTS))
        for each, future in zip(waiting, asked, strict=True):
            if each[0] == "read_uncommitted":
                future.result()
        committed = [future for each, future in zip(waiting, asked, strict=True) if each[0] == "read_committed"]
        assert not any(future.done() for future in committed)
        scene.stop_worker()
        scene.start_worker()
        for (level, store, case, key), future in zip(waiting, asked, strict=True):
            answer = scene.check(future.result(), store, case, key, level)
            assert all(offset > ends[p] for p, offset in scene.offsets(answer).items())


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))
