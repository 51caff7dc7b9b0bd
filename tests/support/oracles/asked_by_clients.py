"""`stateline.client` with a session, both kinds: it asks owners directly, and what it gives is right and goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from stateline.client import (
    Answer,
    AsyncClient,
    Client,
    RequestError,
    Retries,
    Session,
    UnreachableError,
)
from support.oracles.cluster_askers import Asking
from support.oracles.cluster_oracle import KEPT, ClusterOracle
from support.oracles.cluster_values import Rows, told
from support.processes.host_nodes import Node

_RETRIES = Retries(deadline_s=3, longest_pause_s=0.5)
_PAUSE_S = 0.1
Asked = tuple[str, str, str, tuple[str, ...], dict[str, Any]]  # shape, store, method, keys, arguments


class RoutedAsker(Asking):
    """One thread that uses `Client`, or the loop of one that uses `AsyncClient`."""

    def __init__(self, name: str, nodes: Sequence[Node], oracle: ClusterOracle, topic: str) -> None:
        super().__init__(name, nodes, oracle, topic)
        self._seen: dict[tuple[str, int], int] = {}
        urls = [node.url for node in nodes]
        self._arguments: dict[str, Any] = {
            "base_url": urls,
            "session": Session(wait_ms=1_000),
            "retries": _RETRIES,
            "timeout_s": 10.0,
        }

    def next_question(self) -> Asked:
        key = self.chance.choice(self.keys)
        found = self.chance.choice(_QUESTIONS)(self.chance.choice(("counts", "newest")), key, self.keys)
        self.asked[f"{self.name}: {found[2]}"] += 1
        return found

    def check(self, asked: Asked, pages: Sequence[Answer], sent_s: float) -> None:
        """Check the answer, or all pages of it."""
        shape, store, _, keys, _ = asked
        question = self.question(self.nodes[0], shape, keys, {}, sent_s)
        offsets = {p: part.position.get(self.topic, p) for p, part in pages[0].partitions.items()}
        known = {p: -1 if offset is None else offset for p, offset in offsets.items()}
        self.oracle.check_whole(question, known)
        self.oracle.check_rows(question, known, _rows(shape, keys, pages))
        # What was seen of a partition goes along as a bound, which any copy may cover.
        self.oracle.check_fresh(question, {p: offset for p, offset in known.items() if (store, p) not in self._seen})
        for p, offset in known.items():
            if offset < self._seen.get((store, p), -1):
                self.oracle.fail("backward", f"{self.name} {asked}: {offset} after {self._seen[store, p]}")
            self._seen[store, p] = offset

    def refused(self, error: Exception) -> None:
        """Check what was raised."""
        if isinstance(error, UnreachableError):
            self.unanswered += 1
        elif isinstance(error, RequestError):
            problem = error.problem
            self.oracle.refused(problem.status, {"reason": problem.reason, "detail": problem.detail}, KEPT)
        else:
            raise error


class ClientAsker(RoutedAsker):
    """Uses `Client`."""

    def run(self) -> None:
        with Client(**self._arguments) as self._client:
            super().run()

    def ask(self) -> None:
        asked, sent_s = self.next_question(), time.monotonic()
        _, store, method, _, arguments = asked
        try:
            found = getattr(self._client.store(store), method)(**arguments)
            self.check(asked, [*found.pages()] if hasattr(found, "pages") else [found], sent_s)
        except (RequestError, UnreachableError) as error:
            self.refused(error)
        self.done.wait(_PAUSE_S)


class AsyncClientAsker(RoutedAsker):
    """Uses `AsyncClient`."""

    def ask(self) -> None:
        asyncio.run(self._ask_all())

    async def _ask_all(self) -> None:
        async with AsyncClient(**self._arguments) as client:
            while not self.done.is_set():
                asked, sent_s = self.next_question(), time.monotonic()
                _, store, method, _, arguments = asked
                try:
                    found = getattr(client.store(store), method)(**arguments)
                    is_scan = hasattr(found, "pages")
                    self.check(asked, [p async for p in found.pages()] if is_scan else [await found], sent_s)
                except (RequestError, UnreachableError) as error:
                    self.refused(error)
                await asyncio.sleep(_PAUSE_S + self.idle_s)


def _key(store: str, key: str, _: Sequence[str]) -> Asked:
    return store, store, "get", (key,), {"key": key}


def _keys(store: str, _: str, keys: Sequence[str]) -> Asked:
    some = tuple(keys[::5])
    return store, store, "get_many", some, {"keys": some}


def _range(store: str, _: str, __: Sequence[str]) -> Asked:
    return store, store, "range", (), {"page_size": 17}


def _windows(_: str, key: str, __: Sequence[str]) -> Asked:
    return "windows", "windows", "windows", (key,), {"key": key}


def _sessions(_: str, key: str, __: Sequence[str]) -> Asked:
    return "sessions", "sessions", "sessions", (key,), {"key": key}


def _versions(_: str, key: str, __: Sequence[str]) -> Asked:
    return "versions", "versions", "versions", (key,), {"key": key}


_QUESTIONS: Sequence[Callable[[str, str, Sequence[str]], Asked]] = (
    *(3 * (_key,)),
    _keys,
    _range,
    _windows,
    _sessions,
    _versions,
)


def _rows(shape: str, keys: tuple[str, ...], pages: Sequence[Any]) -> Rows:
    if not hasattr(pages[0], "entries"):
        answer = pages[0]
        return {(answer.key,): answer.value} if answer.found else {}
    entries = [_members(entry) for page in pages for entry in page.entries]
    return told(shape, entries, *keys[:1])


def _members(entry: Any) -> Mapping[str, Any]:
    return {each.name: getattr(entry, each.name) for each in fields(entry)}
