"""Threads that ask nodes at random, and how long an answer takes to come."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import httpx

from flights.checks import Tally
from flights.nodes.questions import Question
from stateline.client import NEVER, Client, RequestError
from stateline_store import RetryLaterError, TooManyRequestsError

_PAUSE_S = 0.025  # between two questions of a thread: the nodes share a machine
_AGAIN_S = 0.25  # what was refused is asked again after so long, most likely of another node
_PATIENCE_S = 60.0
_TIMEOUT_S = 5.0

Asker = Callable[[], Question]
"""Gives the next question of a thread."""


class AnyNode(httpx.BaseTransport):
    """Sends each request to one of these nodes, at random, whatever its URL says."""

    def __init__(self, urls: Callable[[], Sequence[str]]) -> None:
        self._urls = urls
        self._http = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx says; the request has the node's URL afterwards."""
        node = httpx.URL(random.choice(self._urls()))
        request.url = request.url.copy_with(scheme=node.scheme, host=node.host, port=node.port)
        request.headers["Host"] = request.url.netloc.decode()
        return self._http.handle_request(request)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


@dataclass(slots=True)
class _Open:
    """A question that has no answer yet."""

    ask: Question
    since_s: float
    again_s: float = 0.0


class Asking:
    """Asks until the end of the block, and until each question has its answer. A refusal that says to ask again is no
    answer, and no mistake; any other one is a wrong answer."""

    def __init__(self, urls: Callable[[], Sequence[str]], askers: Sequence[tuple[Asker, Tally]]) -> None:
        self.answered = 0
        self.refused = 0
        self.longest_wait_s = 0.0
        """From when a question was asked first until it had an answer."""
        self.longest_pause_s = 0.0
        """Between two answers to whatever question."""
        self._urls = urls
        self._counting = threading.Lock()
        self._last_s = time.monotonic()
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(len(askers))
        self._work = [self._threads.submit(self._ask, *asker) for asker in askers]

    def verdict(self, tallies: Sequence[Tally]) -> str:
        """One line about all answers."""
        checked, wrong = sum(tally.checked for tally in tallies), sum(len(tally.wrong) for tally in tallies)
        judged = f"{wrong:,} wrong" if wrong else "all right at their Position"
        return f"{self.answered:,} questions answered, {self.refused:,} asked again, {checked:,} checks, {judged}."

    def __enter__(self) -> Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._threads.shutdown()
        if error is None:
            for work in self._work:
                work.result()

    def _ask(self, next_question: Asker, tally: Tally) -> None:
        waiting: deque[_Open] = deque()
        http = httpx.Client(transport=AnyNode(self._urls), trust_env=False)
        with http, Client("http://any-node", retries=NEVER, timeout_s=_TIMEOUT_S, http=http) as client:
            while not self._stopping.is_set() or waiting:
                # In turn, so that questions that cannot be answered yet keep none of the others waiting.
                if waiting and waiting[0].again_s <= time.monotonic():
                    self._try(client, waiting.popleft(), waiting, tally)
                if not self._stopping.is_set():
                    self._try(client, _Open(next_question(), time.monotonic()), waiting, tally)
                time.sleep(_PAUSE_S)

    def _try(self, client: Client, one: _Open, waiting: deque[_Open], tally: Tally) -> None:
        try:
            one.ask(client)
        except RetryLaterError as error:
            now = time.monotonic()
            if isinstance(error, TooManyRequestsError) or now - one.since_s > _PATIENCE_S or not self._urls():
                tally.check("a question", str(error), "an answer")
                return
            one.again_s = now + _AGAIN_S
            waiting.append(one)
            with self._counting:
                self.refused += 1
        except RequestError as error:
            tally.check("a question", str(error), "an answer")
        else:
            self._note(time.monotonic() - one.since_s)

    def _note(self, waited_s: float) -> None:
        with self._counting:
            now = time.monotonic()
            self.answered += 1
            self.longest_wait_s = max(self.longest_wait_s, waited_s)
            self.longest_pause_s = max(self.longest_pause_s, now - self._last_s)
            self._last_s = now
