"""Changes of a store, read at one node after the other, each time on from the last `id`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from support.oracles.cluster_askers import PROBLEM, Asking
from support.oracles.cluster_oracle import REFUSALS, ClusterOracle
from support.processes.change_scene import Reader
from support.processes.host_nodes import Node


class ChangeReader(Asking):
    """Of a table every record of its topic is a change: none is left out. Of another store each is what the input had
    made of the key at some time, and nothing goes back; at the end the last one of each key is what there is.
    """

    def __init__(self, store: str, nodes: Sequence[Node], oracle: ClusterOracle, topic: str) -> None:
        super().__init__(f"changes-{store}", nodes, oracle, topic)
        self._store, self._is_table = store, store == "newest"
        self._last_id: str | None = None
        self._offsets: dict[int, int] = {}
        self._values: dict[str, Any] = {}

    def ask(self) -> None:
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        terms = {"from": "earliest"} if self._last_id is None else {}
        self.asked[f"changes of {self._store}"] += 1
        with self.stream(self.node(), f"/v1/stores/{self._store}/changes", terms, headers) as answer:
            if answer is None:
                return
            if answer.headers["content-type"].startswith(PROBLEM):
                self.oracle.refused(answer.status_code, answer.json(), REFUSALS)
                self.done.wait(0.2)
                return
            reader, left = Reader(answer), self.chance.randrange(100, 2_000)
            for event in reader:
                self._last_id = reader.id or self._last_id
                if event.name == "end":
                    self._check_end(event.data)
                elif event.name == "change":
                    self.take(event.data)
                    left -= 1
                if left <= 0 or self.done.is_set():
                    break

    def has_all(self, offsets: Mapping[int, int]) -> bool:
        """Whether the last change of each key was what the input up to these offsets makes of it."""
        wanted = self.oracle.expected.rows(self._store, (), offsets)
        return {(key,): value for key, value in self._values.copy().items()} == wanted

    def take(self, change: Mapping[str, Any]) -> None:
        """Check one."""
        partition, offset, key, value = (change[name] for name in ("partition", "offset", "key", "value"))
        before = self._offsets.get(partition, -1)
        if offset <= before or (self._is_table and offset != before + 1):
            self.oracle.fail("backward", f"{self._store}: {change} after {before}: a change was lost, or comes twice")
        self._offsets[partition] = offset
        history, name = self.oracle.expected.history, key.encode()
        if self._is_table:
            wanted: Any = value if history.record(partition, offset) == (name, value) else None
        else:
            wanted = history.nth(partition, name, value[0])
            if value[0] <= self._values.get(key, [0])[0]:
                self.oracle.fail("backward", f"{self._store}: {change} after {self._values.get(key)}")
        if value is None or value != wanted:
            self.oracle.fail("wrong", f"{self._store}: {change}, and {wanted} was to be given")
        self.asked["changes"] += 1
        self._values[key] = value

    def _check_end(self, said: dict[str, Any]) -> None:
        if said["reason"] not in ("NOT_READY", "TOO_SLOW"):
            self.oracle.fail("other refusals", f"changes of {self._store} ended: {json.dumps(said)}")
