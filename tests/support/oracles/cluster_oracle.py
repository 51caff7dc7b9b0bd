"""What the answers of several nodes are held to, whatever happens to them. Plain Python; thread-safe.

| promised                                       | how it is seen                                                      |
|------------------------------------------------|---------------------------------------------------------------------|
| an answer is what the input to its Position is | each value, and every row of a range, is compared (`Expected`)      |
| Positions that are handed on never go back     | an answer covers the `position_bound` of its question               |
| who allows no older copy gets none             | asked after an owner has answered, an answer without a bound or a   |
|                                                | staleness is no older, of another store of the task a moment later  |
| a copy with a `lag_ms` had everything that     | it is no older than what owners had answered by then; with a larger |
| long ago                                       | one than `max_staleness_ms` allows, as if that was not asked for    |
| one copy at a time says `active`               | the same of whatever says it; it moves no more often than the group |
|                                                | has given out its tasks, and in one generation of the group one     |
|                                                | node has a task                                                     |
| refusals are 421, 412 or 503                   | nothing else, and none without what to do; 410 of what is kept for  |
|                                                | somebody, as pages are                                              |
| processes run on, but for a worker that gives  | any other end, and a question that is not answered                  |
| up while Kafka is away                         |                                                                     |

Only what did not overlap is compared: an answer counts from when it was received, a question from when it was sent.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from support.oracles.cluster_values import Expected, Rows, told

REFUSALS = {"NOT_PRESENT": 421, "NOT_UP_TO_BOUND": 412, "NOT_ACTIVE": 503, "NOT_READY": 503}
KEPT = {**REFUSALS, "CURSOR_EXPIRED": 410}
"""Of what is kept for somebody, as pages are."""
WRONG = ("wrong", "backward", "two active", "other refusals", "ended by itself", "no answer")
"""What can be wrong."""
# How long changelogs are counts for a second, and Kafka ends a transaction in a changelog after it has told the owner.
_LAG_SLACK_S = 2.0
# The stores of a task are committed one after the other, then announced together: one that a server opens or catches up
# with meanwhile shows the commit before the others do.
_OTHER_STORE_SLACK_S = 2.0
_PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Question:
    """What was asked of a node, and when (`time.monotonic`). `shape` is that of its rows (`cluster_values`); `keys` are
    those that it names, none of a range."""

    node: str
    shape: str
    keys: tuple[str, ...]
    terms: Mapping[str, str]
    sent_s: float
    received_s: float

    @property
    def bound(self) -> Mapping[str, Mapping[str, int]]:
        found: dict[str, dict[str, int]] = json.loads(self.terms.get("position_bound", "{}"))
        return found

    @property
    def store(self) -> str:
        return "versions" if self.shape == "latest" else self.shape

    @property
    def committed(self) -> bool:
        return self.terms.get("isolation_level") != "read_uncommitted"

    def takes(self, topic: str, partition: int) -> str:
        """Which copies of this partition it takes: the setting that says so."""
        if not self.committed:
            return "read_uncommitted"
        if self.terms.get("require_active"):
            return "require_active"
        if str(partition) in self.bound.get(topic, {}):
            return "position_bound"
        return "max_staleness_ms" if "max_staleness_ms" in self.terms else "read_committed"


@dataclass
class _Known:
    """What was heard of the active copy of a store partition: when, the furthest Position until then, and where."""

    received_s: list[float] = field(default_factory=list)
    furthest: list[tuple[int, Question]] = field(default_factory=list)

    def note(self, question: Question, offset: int) -> None:
        self.received_s.append(max([question.received_s, *self.received_s[-1:]]))
        self.furthest.append(max([*self.furthest[-1:], (offset, question)], key=lambda each: each[0]))

    def at(self, at_s: float) -> tuple[int, Question] | None:
        """What was known at this time; None for nothing."""
        before = bisect_left(self.received_s, at_s)
        return self.furthest[before - 1] if before else None


@dataclass
class _Active:
    """What was heard of the active copy of a partition, by store, and from whom last."""

    known: defaultdict[str, _Known] = field(default_factory=lambda: defaultdict(_Known))
    node: str = ""
    node_s: float = 0.0
    moves: int = 0


class ClusterOracle:
    """Of one application, whose input is known (`History`). What is wrong is an `AssertionError`."""

    def __init__(self, expected: Expected, topic: str) -> None:
        self.expected = expected
        self.told: Counter[str] = Counter()
        """How often which answer was given: by role, or reason."""
        self.wrong: Counter[str] = Counter(dict.fromkeys(WRONG, 0))
        """How often what was wrong."""
        self.longest_gap_s: defaultdict[str, float] = defaultdict(float)
        """For how long nobody was answered of one partition, by what was asked for (`Question.takes`), and by any."""
        self.recent_gap_s: defaultdict[str, float] = defaultdict(float)
        """The same since `new_gaps` was called last."""
        self._topic = topic
        self._began_s = 0.0
        self._answered_s: dict[tuple[str, int], float] = {}
        self._active: defaultdict[int, _Active] = defaultdict(_Active)
        self._claims: dict[tuple[str, int], str] = {}
        self._generations: list[int] = []
        self._lock = threading.Lock()

    def take(self, question: Question, status: int, media_type: str, body: Mapping[str, Any]) -> dict[str, int]:
        """Check an answer, or a refusal; the Position that was answered: partition → offset."""
        with self._lock:
            if media_type == _PROBLEM:
                self._refused(status, body, REFUSALS)
                return {}
            if status != 200 and (status != 404 or body.get("found") is not False):
                self._fail("other refusals", f"{status}: {body}")
            for failure in body.get("failures", {}).values():
                self._refused(failure["status"], failure, REFUSALS)
            return self._answered(question, body)

    def refused(self, status: int, problem: Mapping[str, Any], reasons: Mapping[str, int] = KEPT) -> None:
        """Check a refusal by itself."""
        with self._lock:
            self._refused(status, problem, reasons)

    def check_rows(self, question: Question, offsets: Mapping[int, int], rows: Rows, *, whole: bool = True) -> None:
        """Check what was read at this Position, all of it or a part."""
        wanted = self.expected.rows(question.shape, question.keys, offsets)
        if not whole:
            wanted = {row: value for row, value in wanted.items() if row in rows}
        if rows != wanted:
            amiss = [row for row in {*rows, *wanted} if rows.get(row) != wanted.get(row)][:5]
            seen = {row: (rows.get(row), wanted.get(row)) for row in amiss}
            self._fail("wrong", f"at {dict(offsets)} (answered, to be answered): {seen}: {question}")

    def check_whole(self, question: Question, partitions: Collection[int]) -> None:
        """Check that none of the partitions that it is of is left out."""
        with self._lock:
            self._check_whole(question, partitions)

    def check_fresh(self, question: Question, offsets: Mapping[int, int]) -> None:
        """Check that this is no older than what owners had answered before it was asked."""
        with self._lock:
            for partition, offset in offsets.items():
                self._check_fresh(question, partition, offset)

    def fail(self, kind: str, what: object) -> NoReturn:
        """Something is wrong, of these kinds (`WRONG`)."""
        with self._lock:
            self._fail(kind, what)

    def claimed(self, node: str, tasks: Mapping[str, Mapping[str, Any]]) -> None:
        """What a node says that it has (`GET /v1/nodes`). A moment after a task was given back that still has it."""
        with self._lock:
            for task, held in tasks.items():
                if held["role"] == "active":
                    self._claim(task, node, held["generation"])

    def check_moves(self) -> None:
        """Raises when a partition was said to be active by turns."""
        with self._lock:
            for partition, active in self._active.items():
                given = max(self._generations) - min(self._generations) if self._generations else 0
                if active.moves > given:
                    self._fail("two active", f"partition {partition} moved {active.moves} times, {given} allowed it")

    def gap_begins(self, now_s: float) -> None:
        """From now on it is meant to be answered again and again."""
        with self._lock:
            self._began_s = now_s

    def new_gaps(self) -> Mapping[str, float]:
        """The gaps that have ended since the last call, as `longest_gap_s` has them."""
        with self._lock:
            found, self.recent_gap_s = self.recent_gap_s, defaultdict(float)
            return found

    def _refused(self, status: int, problem: Mapping[str, Any], reasons: Mapping[str, int]) -> None:
        reason = problem.get("reason")
        if reasons.get(str(reason)) != status or not problem.get("detail"):
            self._fail("other refusals", f"{status}: {problem}")
        self.told[f"{status} {reason}"] += 1

    def _answered(self, question: Question, body: Mapping[str, Any]) -> dict[str, int]:
        copies: dict[str, Any] = body["partitions"]
        offsets = {p: int(copy["position"].get(self._topic, {}).get(p, -1)) for p, copy in copies.items()}
        bound = question.bound.get(self._topic, {})
        for p, offset in offsets.items():
            if offset < bound.get(p, -1):
                self._fail("backward", f"partition {p} went back to {offset}: {question}")
        self._check_values(question, body, {int(p): offset for p, offset in offsets.items()})
        for p, copy in copies.items():
            self._check_copy(question, int(p), copy, offsets[p])
        return {p: offset for p, offset in offsets.items() if offset >= 0}

    def _check_values(self, question: Question, body: Mapping[str, Any], offsets: Mapping[int, int]) -> None:
        if "failures" not in body:
            self._check_whole(question, offsets)
        if "approximate_entries" in body:
            return
        if "entries" in body:
            rows = told(question.shape, body["entries"], *question.keys[:1])
        else:
            rows = {(body["key"],): body["value"]} if body["found"] else {}
        self.check_rows(question, offsets, rows)

    def _check_whole(self, question: Question, partitions: Collection[int]) -> None:
        homes = self.expected.homes
        if missing := {homes[key] for key in question.keys or homes} - {*partitions}:
            self._fail("wrong", f"partitions {missing} are missing: {question}")

    def _check_copy(self, question: Question, partition: int, copy: Mapping[str, Any], offset: int) -> None:
        role, node = copy["served_by"], copy.get("node", question.node)
        self.told[role] += 1
        self.told["forwarded"] += node != question.node
        for kind in (question.takes(self._topic, partition), "any"):
            since_s = self._answered_s.get((kind, partition), self._began_s or question.received_s)
            for found in (self.longest_gap_s, self.recent_gap_s):
                found[kind] = max(found[kind], question.received_s - since_s)
            self._answered_s[kind, partition] = max(since_s, question.received_s)
        owner_alone = bool(question.terms.get("require_active"))
        if (owner_alone and role != "active") or (not question.committed and role == "standby"):
            self._fail("wrong", f"{role} for the owner: {question} {copy}")
        if not question.committed:
            return
        lag_ms, allowed_ms = copy.get("lag_ms"), question.terms.get("max_staleness_ms")
        allows_older = str(partition) in question.bound.get(self._topic, {})
        if lag_ms is not None:
            self.told["with a lag"] += 1
            self._check_fresh(question, partition, offset, f"{role} at {node}: {copy}", lag_ms / 1000 + _LAG_SLACK_S)
            # With a larger one it has answered because nobody else could have the task, as without the term.
            allows_older |= allowed_ms is not None and lag_ms <= int(allowed_ms)
        if role == "active" or not allows_older:
            self._check_fresh(question, partition, offset, f"{role} at {node}")
        if role == "active":
            self._note_active(question, partition, node, offset)

    def _check_fresh(
        self, question: Question, partition: int, offset: int, who: str = "", older_s: float = 0.0
    ) -> None:
        """`older_s` is how long before the question what owners had answered until then counts."""
        for store, known in self._active[partition].known.items():
            slack_s = 0.0 if store == question.store else _OTHER_STORE_SLACK_S
            found = known.at(question.sent_s - older_s - slack_s)
            if found is not None and offset < found[0]:
                why = f"partition {partition} at {offset}, {found[0]} was known: {who} {question} {found[1]}"
                self._fail("backward", why)

    def _note_active(self, question: Question, partition: int, node: str, offset: int) -> None:
        known = self._active[partition]
        known.known[question.store].note(question, offset)
        if node != known.node and question.sent_s > known.node_s:
            known.moves += bool(known.node)
            known.node = node
        if node == known.node:
            known.node_s = max(known.node_s, question.received_s)

    def _claim(self, task: str, node: str, generation: int) -> None:
        self._generations.append(generation)
        other = self._claims.setdefault((task, generation), node)
        if other != node:
            self._fail("two active", f"{other} and {node} have {task} active, both in generation {generation}")

    def _fail(self, kind: str, what: object) -> NoReturn:
        self.wrong[kind] += 1
        raise AssertionError(f"{kind}: {what}")
