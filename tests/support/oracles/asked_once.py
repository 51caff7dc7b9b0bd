"""Questions with one answer: a key, many keys, a range, windows, sessions, versions, counts, and who has what."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from support.oracles.cluster_askers import Asker, Terms
from support.processes.host_nodes import Node

_WAIT_MS, _STALENESS_MS = 1_000, 10_000
Given = Callable[[Asker], Terms]


def _plain(_: Asker) -> Terms:
    return {}


def _active(_: Asker) -> Terms:
    return {"require_active": "true"}


def _bounded(asker: Asker) -> Terms:
    return {"position_bound": asker.bound, "wait_ms": str(_WAIT_MS)}


def _stale(_: Asker) -> Terms:
    return {"max_staleness_ms": str(_STALENESS_MS)}


def _uncommitted(_: Asker) -> Terms:
    return {"isolation_level": "read_uncommitted"}


def _partial(_: Asker) -> Terms:
    return {"allow_partial": "true"}


def _bounded_partial(asker: Asker) -> Terms:
    return {**_bounded(asker), **_partial(asker)}


def _store(asker: Asker) -> str:
    return asker.chance.choice(("counts", "newest"))


def _ask_key(asker: Asker, given: Given) -> None:
    key = asker.chance.choice(asker.keys)
    store = _store(asker)
    _ask(asker, store, (key,), f"/v1/stores/{store}/keys/{key}", given(asker))


def _ask_keys(asker: Asker, given: Given) -> None:
    store, keys, terms = _store(asker), tuple(asker.chance.sample(asker.keys, 8)), given(asker)
    members = {name: json.loads(value) for name, value in terms.items()}
    _ask(asker, store, keys, f"/v1/stores/{store}/query", terms, {"type": "keys", "keys": keys, **members})


def _ask_range(asker: Asker, given: Given) -> None:
    store = _store(asker)
    _ask(asker, store, (), f"/v1/stores/{store}/range", given(asker))


def ask_range_at(asker: Asker, node: Node, terms: Terms) -> int:
    """Of counts, held against the oracle as whatever the asker asks by itself; the status, 0 of a node that is away."""
    path, sent_s = "/v1/stores/counts/range", time.monotonic()
    answer = asker.get(node, path, terms)
    if answer is None:
        return 0
    asker.take(asker.question(node, "counts", (), terms, sent_s), answer)
    return answer.status_code


def _ask_count(asker: Asker, given: Given) -> None:
    store = _store(asker)
    _ask(asker, store, (), f"/v1/stores/{store}/count", given(asker))


def _ask_times(asker: Asker, given: Given, store: str) -> None:
    """Windows, sessions or versions of a key."""
    key = asker.chance.choice(asker.keys)
    _ask(asker, store, (key,), f"/v1/stores/{store}/keys/{key}/{store}", {**given(asker), "limit": "2000"})


def _ask(asker: Asker, shape: str, keys: tuple[str, ...], path: str, terms: Terms, body: object = None) -> None:
    node, sent_s = asker.node(), time.monotonic()
    answer = asker.get(node, path, None if body else terms, body)
    if answer is not None:
        asker.take(asker.question(node, shape, keys, terms, sent_s), answer)


def who_has_what(asker: Asker) -> None:
    node = asker.node()
    answer = asker.get(node, "/v1/nodes")
    if answer is not None and answer.status_code != 503:  # which a node that starts answers
        assert answer.status_code == 200, answer.text
        asker.oracle.claimed(node.name, answer.json()["nodes"][node.name]["tasks"])


def _named(name: str, ask: Callable[..., None], *given: object) -> Callable[[Asker], None]:
    def kind(asker: Asker) -> None:
        ask(asker, *given)

    kind.__name__ = name
    return kind


ONCE: Mapping[Callable[[Asker], None], int] = {
    _named("key", _ask_key, _plain): 10,
    _named("key of the owner", _ask_key, _active): 10,
    _named("key with a bound", _ask_key, _bounded): 10,
    _named("key of an older copy", _ask_key, _stale): 10,
    _named("key uncommitted", _ask_key, _uncommitted): 10,
    _named("many keys", _ask_keys, _plain): 10,
    _named("many keys with a bound", _ask_keys, _bounded): 5,
    _named("range", _ask_range, _plain): 10,
    _named("range of what there is", _ask_range, _partial): 10,
    _named("range of what there is with a bound", _ask_range, _bounded_partial): 10,
    _named("count", _ask_count, _plain): 5,
    _named("windows of a key", _ask_times, _plain, "windows"): 5,
    _named("windows of a key with a bound", _ask_times, _bounded, "windows"): 5,
    _named("sessions of a key", _ask_times, _plain, "sessions"): 5,
    _named("versions of a key", _ask_times, _plain, "versions"): 5,
    _named("who has what", who_has_what): 10,
}
"""How often what is asked."""
