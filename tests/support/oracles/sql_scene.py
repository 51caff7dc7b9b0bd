"""A deployment of `sql_app` whose input goes on, and statements whose answers are held against plain tables."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import httpx
from hypothesis import HealthCheck, Phase, given, settings

from stateline_store import Position
from support.apps.kinds_app import Event
from support.apps.matrix_app import PARTITIONS, Deployment
from support.apps.sql_app import IN_MEMORY, KEYS, build, headers_of
from support.oracles.sql_oracle import SqlTables, in_order, told
from support.oracles.sql_statements import Statement, statements
from support.processes.query_server import wait_until
from support.processes.running_worker import produce
from support.run.length import long_or_short

Json: TypeAlias = dict[str, Any]

# Kafka refuses times more than an hour ahead: an hour of the long run has 72,000 steps of a second.
BASE_MS = (time.time_ns() // 1_000_000 // 3_600_000 - 24) * 3_600_000
STEP_MS, AT_ONCE, AT_FIRST = 1_000, 4, 150
LAST_MS = BASE_MS + 3 * AT_FIRST * STEP_MS
_OF_TWO = Statement('SELECT count(*) AS n FROM "table" t, "counts" u', ("table", "counts"))
PACE_S = long_or_short(0.2, 0.05)


def events(chance: random.Random, count: int, first: int) -> list[Event]:
    """Some out of order, some too late, some deletes."""
    made: list[Event] = []
    for n in range(first, first + count):
        back = chance.choices([0, chance.randrange(100_000), chance.randrange(600_000)], [7, 2, 1])[0]
        value = None if chance.random() < 0.15 else n
        made.append((chance.choice(KEYS), value, max(BASE_MS, BASE_MS + n * STEP_MS - back)))
    return made


class SqlDeployment(Deployment):
    """The application of SQL."""

    module = "support.apps.sql_app"

    def send(self, events: list[Event]) -> None:
        self.history.add(events)
        written = [
            (key.encode(), None if value is None else json.dumps(value).encode(), at, headers_of(key, value))
            for key, value, at in events
        ]
        produce(self.log, self.topic, written)


class SqlScene:
    """A deployment whose input goes on. `clients` are asked by turns, one of its own each."""

    def __init__(self, deployment: SqlDeployment) -> None:
        self.deployment = deployment
        self.tables = SqlTables(deployment.history)
        self.clients: list[httpx.Client] = []
        self.cuts = 0
        """How many answers of several tables were of one moment."""
        self.apart = 0
        """How many were not, although all stores are on disk: a node refused."""
        self.checked = 0
        self._seen: Json = {}
        self._stop = threading.Event()
        self._chance, self._sent = random.Random(7), 0
        self._sender = threading.Thread(target=self._send_on)
        self.send(AT_FIRST)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Write more input within the block, which begins when every store has some."""
        for client in self.clients:
            wait_until(lambda client=client: self._has_all_stores(client), 120)  # type: ignore[misc]
        self._sender.start()
        try:
            yield
        finally:
            self._stop.set()
            self._sender.join()

    def ask(self, statement: Statement) -> httpx.Response:
        body: dict[str, Any] = {"sql": statement.sql, "details": "all", "max_age_ms": statement.max_age_ms}
        if statement.uncommitted:
            body["isolation_level"] = "read_uncommitted"
        if statement.as_of is not None:
            body["as_of"] = statement.as_of
        if statement.is_bounded and self._seen:
            body |= {"position_bound": self._seen, "wait_ms": 60_000}
        return self._chance.choice(self.clients).post("/v1/sql", json=body)

    def check(self, statement: Statement) -> None:
        """Ask, and compare the rows with those of plain tables."""
        bound = Position.from_json(self._seen) if statement.is_bounded else Position()
        response = self.ask(statement)
        if statement.as_of is not None and "reads no versioned store" in response.text:
            return  # the planner found that no row of it can match
        if self._has_no_cut(statement, response):
            return
        assert response.status_code == 200, (statement, response.text)
        answer = response.json()
        assert json.loads(response.headers["stateline-position"]) == answer["position"]
        positions = answer["positions"]
        if positions:
            assert bound.merge(Position.from_json(answer["position"])).to_json() == answer["position"], statement
            self._seen = Position.from_json(self._seen).merge(Position.from_json(answer["position"])).to_json()
        if answer["cut"]:
            assert all(each == answer["position"] for each in positions.values()), answer
        self.cuts += answer["cut"] and len(positions) > 1
        self.apart += not answer["cut"] and len(positions) > 1 and not any(IN_MEMORY in table for table in positions)
        offsets = {table: self._offsets(each) for table, each in positions.items()}
        self.checked += 1
        expected = self.tables.answer(statement, offsets)
        assert in_order(told(answer), statement.sql) == in_order(expected, statement.sql), (statement, answer["reads"])

    def _has_no_cut(self, statement: Statement, response: httpx.Response) -> bool:
        """Whether it is refused: all versions come from a snapshot, which no store in memory is in."""
        has_versions = any(table.endswith("_versions") for table in statement.tables)
        is_mixed = has_versions and any(IN_MEMORY in table for table in statement.tables)
        return is_mixed and response.status_code == 422 and "needs a snapshot" in response.json()["detail"]

    def _has_all_stores(self, client: httpx.Client) -> bool:
        """Whether workers have committed every store once."""
        names = build("").topology().stores
        found = (client.get(f"/v1/stores/{name}/position").json().get("committed", {}) for name in names)
        return all(len(each) == PARTITIONS and all(each.values()) for each in found)

    def _offsets(self, position: Json) -> dict[int, int]:
        found = {int(p): offset for p, offset in position[self.deployment.topic].items()}
        assert len(found) == PARTITIONS
        return found

    def _send_on(self) -> None:
        while not self._stop.wait(PACE_S):
            self.send(AT_ONCE)

    def send(self, count: int) -> None:
        self.deployment.send(events(self._chance, count, self._sent))
        self._sent += count


def check_statements(scene: SqlScene, examples: int) -> None:
    """Check so many statements."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(statements(BASE_MS, LAST_MS))
    def check(statement: Statement) -> None:
        scene.check(statement)

    scene.check(_OF_TWO)  # at random, there may be none
    check()
    assert scene.checked >= examples // 2
