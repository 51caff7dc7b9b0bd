"""Clients that ask nodes without end; what each of them is answered is held against the oracle.

What they ask is in modules of its own: `asked_once` (one answer), `asked_scans` (pages and streams), `asked_sql`,
`asked_snapshots`, `asked_changes`, and `asked_by_clients` (`stateline.client`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx

from support.oracles.cluster_oracle import ClusterOracle, Question
from support.processes.host_nodes import Node
from support.processes.query_server import wait_until

HANGING_S = 60.0
"""No question takes so long: it waits for its bound, and for three nodes at most."""
SLOW_S = 20.0
"""Who has waited for so long asks once more: a node that was paused meanwhile never answers what was on its way."""
LIMITS = httpx.Limits(keepalive_expiry=1.0)  # far from the server's 5 s: it may hang up as a request is sent
_PAUSED_S = 1.0
_LOOK_S = 0.2  # what is waited for takes seconds, and to look is a question to a node
PROBLEM = "application/problem+json"

Terms = Mapping[str, str]


class Asking(threading.Thread):
    """One client, which asks until it is `done`; `error` is what was wrong."""

    def __init__(self, name: str, nodes: Sequence[Node], oracle: ClusterOracle, topic: str) -> None:
        super().__init__(name=name)
        self.nodes, self.oracle, self.topic = nodes, oracle, topic
        self.keys = [*oracle.expected.homes]
        self.chance = random.Random(name)
        self.asked: Counter[str] = Counter()
        """How often what."""
        self.slowest: tuple[float, str] = 0.0, ""
        """Seconds, and what was asked, of the question that took longest."""
        self.unanswered = 0
        """Questions to nodes that were away."""
        self.broken_off = 0
        """Streams that have ended before their end."""
        self.slow = 0
        """Questions that were asked once more."""
        self.idle_s = 0.0
        """How long nothing is asked after each question."""
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._http = httpx.Client(trust_env=False, limits=LIMITS)

    def ask(self) -> None:
        """Ask something, and check what comes."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            with self._http:
                while not self.done.is_set():
                    self.ask()
                    self.done.wait(self.idle_s)
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def node(self) -> Node:
        return self.chance.choice(self.nodes)

    def get(
        self, node: Node, path: str, terms: Terms | None = None, body: object = None, method: str | None = None
    ) -> httpx.Response | None:
        """The answer; None when the node was away."""
        sent_s = time.monotonic()
        method = method or ("GET" if body is None else "POST")
        for patience_s in (SLOW_S, HANGING_S):
            timeout_s = patience_s if node.is_there else _PAUSED_S
            try:
                return self._http.request(method, node.url + path, params=terms, json=body, timeout=timeout_s)
            except httpx.TransportError as error:
                if isinstance(error, httpx.ReadTimeout) and timeout_s == SLOW_S and node.is_there:
                    self.slow += 1
                    continue
                self._check_away(node, path, sent_s, error)
                return None
            finally:
                self.slowest = max(self.slowest, (time.monotonic() - sent_s, f"{node.name} {path} {terms}"))
        return None

    @contextmanager
    def stream(
        self, node: Node, path: str, terms: Terms, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response | None]:
        """An answer whose body is read within the block, which ends when that breaks off; None when the node was
        away."""
        sent_s, began = time.monotonic(), False
        try:
            timeout = HANGING_S if node.is_there else _PAUSED_S
            with self._http.stream("GET", node.url + path, params=terms, headers=headers, timeout=timeout) as answer:
                began = True
                if answer.status_code != 200:
                    answer.read()
                yield answer
        except httpx.TransportError as error:
            if began:
                self.broken_off += 1
                return
            self._check_away(node, path, sent_s, error)
            yield None

    def question(self, node: Node, shape: str, keys: tuple[str, ...], terms: Terms, sent_s: float) -> Question:
        """One that is answered now."""
        return Question(node.name, shape, keys, terms, sent_s, time.monotonic())

    def offsets(self, position: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
        """Of the input's partitions, as the JSON of a Position has them."""
        return {int(p): offset for p, offset in position.get(self.topic, {}).items()}

    def _check_away(self, node: Node, path: str, sent_s: float, error: Exception) -> None:
        now_s = time.monotonic()
        if node.was_there(sent_s, now_s):
            code = node.exit_code()
            told = f"{node.name} did not answer for {now_s - sent_s:.1f} s: {path}: {error!r}"
            self.oracle.fail("no answer" if code is None else "ended by itself", f"{told}, exit code {code}")
        self.unanswered += 1


class Asker(Asking):
    """Asks one question after the other, of these kinds, as often as their weights say; it hands the Positions that it
    was answered on, to whichever node it asks next."""

    def __init__(
        self,
        number: int,
        nodes: Sequence[Node],
        oracle: ClusterOracle,
        topic: str,
        kinds: Mapping[Callable[[Asker], None], int],
    ) -> None:
        super().__init__(f"asker-{number}", nodes, oracle, topic)
        self._kinds, self._weights = [*kinds], [*kinds.values()]
        self._seen: dict[str, int] = {}

    @property
    def bound(self) -> str:
        """All that it has seen."""
        return json.dumps({self.topic: self._seen})

    def ask(self) -> None:
        (kind,) = self.chance.choices(self._kinds, self._weights)
        self.asked[kind.__name__] += 1
        kind(self)
        self.done.wait(self.chance.uniform(0, 0.08))

    def take(self, question: Question, answer: httpx.Response) -> bool:
        """Check an answer; whether it was none but a refusal."""
        media_type = answer.headers["content-type"].partition(";")[0]
        found = self.oracle.take(question, answer.status_code, media_type, answer.json())
        if question.committed:
            self._seen |= {p: max(offset, self._seen.get(p, -1)) for p, offset in found.items()}
        return media_type == PROBLEM


class Askers:
    """Several of them; what is wrong is raised by whatever waits for them."""

    def __init__(self, all_of_them: Sequence[Asking], idle_s: float) -> None:
        self._all = all_of_them
        for asker in all_of_them:
            asker.idle_s = idle_s

    def start(self) -> None:
        for asker in self._all:
            asker.start()

    def stop(self) -> None:
        for asker in self._all:
            asker.done.set()
        for asker in self._all:
            if asker.is_alive():
                asker.join()
        self.check()

    def check(self) -> None:
        """Raise what was wrong."""
        for asker in self._all:
            if asker.error is not None:
                raise asker.error

    @property
    def asked(self) -> Counter[str]:
        """How often what was asked."""
        return sum((asker.asked for asker in self._all), Counter())

    @property
    def slowest(self) -> tuple[float, str]:
        """Seconds, and what was asked, of the question that took longest."""
        return max(asker.slowest for asker in self._all)

    @property
    def unanswered(self) -> int:
        """Questions to nodes that were away."""
        return sum(asker.unanswered for asker in self._all)

    @property
    def broken_off(self) -> int:
        """Streams that have ended before their end."""
        return sum(asker.broken_off for asker in self._all)

    @property
    def slow(self) -> int:
        """Questions that were asked once more, after `SLOW_S`."""
        return sum(asker.slow for asker in self._all)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds, or something is wrong."""

        def met() -> bool:
            self.check()
            return condition()

        wait_until(met, most_pause_s=_LOOK_S)
