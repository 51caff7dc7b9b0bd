"""Snapshots over all nodes: made at one, read where each part is kept, renewed and released at others."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx
import pyarrow as pa

from support.oracles.cluster_askers import PROBLEM, Asking
from support.oracles.cluster_oracle import KEPT, REFUSALS, Question
from support.oracles.cluster_values import told

_STORES = {"counts": "counts", "newest": "newest", "windows": "windows", "versions": "versions"}
_TTL_S = 30
_FULL = "No space left on device"
_LATER_S = 2.0


class SnapshotReader(Asking):
    """Makes one after the other, and reads it twice: at once, and when everything has gone on."""

    def ask(self) -> None:
        node, sent_s = self.node(), time.monotonic()
        self.asked["snapshot"] += 1
        made = self.get(node, "/v1/snapshots", body={"stores": [*_STORES], "ttl_s": _TTL_S})
        if made is not None and self._is_answer(made, REFUSALS):
            told_ = made.json()
            question = self.question(node, "", (), {}, sent_s)
            self._check_cut(question, told_)
            self._read(question, told_)
            self.done.wait(self.chance.uniform(0, _LATER_S))
            path = f"/v1/snapshots/{told_['id']}"
            renewed = self.get(self.node(), path, body={"ttl_s": _TTL_S}, method="PATCH")
            if renewed is not None:
                self._is_answer(renewed)
            self._read(question, told_)
            released = self.get(self.node(), path, method="DELETE")
            if released is not None and released.status_code != 204:
                self._is_answer(released)
        self.done.wait(self.chance.uniform(0, 1))

    def _is_answer(self, answer: httpx.Response, reasons: Mapping[str, int] = KEPT) -> bool:
        if not answer.headers["content-type"].startswith(PROBLEM):
            return True
        problem = answer.json()
        if _FULL in problem.get("detail", ""):
            reasons = {**reasons, "STORE_EXCEPTION": 500}
        self.oracle.refused(answer.status_code, problem, reasons)
        return False

    def _check_cut(self, question: Question, made: Mapping[str, Any]) -> None:
        """All stores of a partition are of one commit, which is no older than what its owner had answered."""
        for partition in set(self.oracle.expected.homes.values()):
            parts = [made["stores"][store][str(partition)] for store in _STORES]
            found = {self.offsets(part["position"]).get(partition, -1) for part in parts}
            if len(found) > 1:
                self.oracle.fail("wrong", f"parts of one commit are at {found}: {made}")
            self.oracle.check_fresh(question, dict.fromkeys([partition], found.pop()))

    def _read(self, made: Question, snapshot: Mapping[str, Any]) -> None:
        for store, parts in snapshot["stores"].items():
            for partition, part in parts.items():
                node = next(node for node in self.nodes if node.name == part["node"])
                answer = self.get(node, part["path"])
                self.asked["part of a snapshot"] += 1
                if answer is None or not self._is_answer(answer):
                    continue
                rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
                if store == "counts":
                    rows = [{**row, "value": json.loads(row["value"])} for row in rows]
                question = self.question(node, _STORES[store], (), made.terms, made.sent_s)
                offset = self.offsets(part["position"]).get(int(partition), -1)
                self.oracle.check_rows(question, {int(partition): offset}, told(_STORES[store], rows))
