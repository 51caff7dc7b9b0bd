"""Choose the server for each request: the owner, with several nodes, or the given URLs. `transport` sends the request.

- **With one node, nothing more is sent.** With several, answers name the node of each partition. The client then reads
  the map (`GET /v1/nodes`) before the next request. It reads the map again after an answer from another owner than the
  map's, after a node was not reached, and after 421.
- **A node is checked before its first request**, also with `GET /v1/nodes`. Its URL may lead elsewhere, for example to
a
  load balancer. A URL that is not this node of this application rests.
- **An unreachable URL rests**, longer each time. Its requests go to the given URLs, or to other nodes.
- **One request asks no URL twice** before a pause of the retries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateline.client.failures import NotActiveError, NotPresentError, NotReadyError, UnreachableError
from stateline.client.nodes import Nodes, Owner, OwnerMap
from stateline.client.requests import Home, Request
from stateline.client.results import Answer
from stateline.client.retries import Attempts
from stateline_store import StatelineError

LOOK_TIMEOUT_S, OWNER_TIMEOUT_S = 2.0, 5.0
"""Limits for a check of a node, and for an owner's answer in addition to `wait_ms`. Other servers can be asked then."""
_FIRST_REST_S, _LONGEST_REST_S = 2.0, 300.0
# Between two reads of the map. The interval doubles if the map has not changed or could not be read.
_MAP_INTERVAL_S, _LONGEST_MAP_INTERVAL_S = 0.2, 30.0


@dataclass(frozen=True, slots=True)
class MapRequest:
    """A request of `GET /v1/nodes`: to check that the URL is the node `owner`, or (None) to read the map."""

    url: str
    owner: Owner | None = None


@dataclass
class Affinity:
    """The server that began a scan, feed or snapshot. It is asked first for the rest."""

    url: str | None = None


class _Rests:
    """URLs that are not asked for a while."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # URL → end of the rest, its length

    def begin(self, url: str) -> None:
        """Start a rest, twice as long as the last one."""
        _, lasted_s = self._until.get(url, (0.0, _FIRST_REST_S / 2))
        rest_s = min(2 * lasted_s, _LONGEST_REST_S)
        self._until[url] = time.monotonic() + rest_s, rest_s

    def forget(self, url: str) -> None:
        """End the rest, because the URL has answered."""
        self._until.pop(url, None)

    def rests(self, url: str) -> bool:
        """Whether this URL rests now."""
        return url in self._until and time.monotonic() < self._until[url][0]


class Routing:
    """The servers and owners that one client knows. Thread-safe."""

    def __init__(self, given: Sequence[str], *, ask_owners: bool) -> None:
        self.given = tuple(url.rstrip("/") for url in given)
        self._ask_owners = ask_owners
        self._lock = threading.Lock()
        self._map: OwnerMap | None = None
        self._rests = _Rests()
        self._proven: dict[str, Owner] = {}
        self._looking: set[str | None] = set()  # None: for the map
        self._found: Nodes | None = None
        self._stale = False
        self._map_at_s, self._map_interval_s = 0.0, _MAP_INTERVAL_S

    @property
    def several(self) -> bool:
        """Whether the client knows several nodes."""
        return self._map is not None

    def candidates(self, home: Home | None, begun: str | None) -> list[str]:
        """Return the URLs to ask, in order: `begun`, the owner, the given URLs, other nodes. Resting given URLs come
        last. Other resting URLs are left out."""
        with self._lock:
            known = self._map
            owner = None if known is None or home is None else known.owner(home)
            first = [begun, None if owner is None else owner.url]
            others = [] if known is None else list(known.owners)
            urls = dict.fromkeys(url for url in [*first, *self.given, *others] if url is not None)
            awake = [url for url in urls if not self._rests.rests(url)]
            return awake + [url for url in self.given if url not in awake]

    def map_look(self, url: str) -> MapRequest | None:
        """Return a request for the map at this URL, or None if it is not time. The caller must call `looked`."""
        with self._lock:
            if not self._stale or None in self._looking or time.monotonic() < self._map_at_s:
                return None
            self._looking.add(None)
            return MapRequest(url)

    def node_look(self, url: str) -> MapRequest | None:
        """Return the check of this node's URL. None if it is known, or being checked by another caller (`may_be_asked`
        tells which). The caller must call `looked`."""
        with self._lock:
            owner = None if self._map is None else self._map.owners.get(url)
            if owner is None or self._is_known(url, owner) or url in self._looking:
                return None
            self._looking.add(url)
            return MapRequest(url, owner)

    def may_be_asked(self, url: str) -> bool:
        """Whether this is a given URL, or a checked node."""
        with self._lock:
            owner = None if self._map is None else self._map.owners.get(url)
            return self._is_known(url, owner)

    def looked(self, look: MapRequest, found: Nodes | None) -> None:
        """Take the result of a map request. None: it failed or was cancelled."""
        with self._lock:
            if look.owner is None:
                self._looking.discard(None)
                self._learn(found)
            else:
                self._looking.discard(look.url)
                self._prove(look.owner, found)

    def answered(self, url: str, answer: Any) -> None:
        """Note an answer of this URL."""
        with self._lock:
            self._rests.forget(url)
            if self._ask_owners and isinstance(answer, Answer) and not self._stale:
                self._stale = not all(self._fits(answer.store, p, each) for p, each in answer.partitions.items())

    def failed(self, url: str, error: StatelineError) -> None:
        """Note a failure of this URL."""
        with self._lock:
            if isinstance(error, UnreachableError):
                self._rests.begin(url)
                self._proven.pop(url, None)
            moved = isinstance(error, UnreachableError | NotActiveError | NotPresentError | NotReadyError)
            elsewhere = isinstance(error, NotPresentError) and error.problem.owner is not None
            if self._ask_owners and ((moved and self._map is not None) or elsewhere):
                self._stale = True

    def begun_at(self, url: str) -> Affinity:
        """Return the affinity to the node with this URL. If the URL is not known, the map is read next."""
        with self._lock:
            known = () if self._map is None else self._map.owners
            self._stale |= self._ask_owners and url not in self.given and url not in known
        return Affinity(url)

    def is_node(self, url: str) -> bool:
        """Whether the map has a node at this URL."""
        return self._map is not None and url in self._map.owners

    def _is_known(self, url: str, owner: Owner | None) -> bool:
        return url in self.given or (owner is not None and self._proven.get(url) == owner)

    def _fits(self, store: str, partition: int, each: Any) -> bool:
        if self._map is None:
            return each.node is None
        return each.served_by != "active" or self._map.agrees(store, partition, each.node)

    def _learn(self, found: Nodes | None) -> None:
        """Take the map. Call it with the lock."""
        changed = False
        if found is not None:
            changed = self._found is None or found.number != self._found.number
            self._found, self._stale = found, False
            self._map = OwnerMap(found, self.given) if len(found.nodes) > 1 else None
        self._map_interval_s = _MAP_INTERVAL_S if changed else min(2 * self._map_interval_s, _LONGEST_MAP_INTERVAL_S)
        self._map_at_s = time.monotonic() + self._map_interval_s

    def _prove(self, owner: Owner, found: Nodes | None) -> None:
        """Take the result of a node's check. Call it with the lock."""
        is_it = found is not None and self._map is not None and found.application == self._map.application
        if is_it and found is not None and found.node == owner.node:
            self._proven[owner.url] = owner
            self._rests.forget(owner.url)
        else:
            self._rests.begin(owner.url)


class Route:
    """The servers that one request asks, in turn. For one thread or task."""

    def __init__(
        self, routing: Routing, request: Request, attempts: Attempts, affinity: Affinity | None = None
    ) -> None:
        self._routing = routing
        self._request = request
        self._attempts = attempts
        self._affinity = affinity or Affinity()
        self._tried: set[str] = set()
        self._hint = ""
        self.url = routing.given[0]
        """The URL to ask, after `look` has returned None."""

    @property
    def is_direct(self) -> bool:
        """Whether `url` is a node from the map, not a given URL."""
        return self.url not in self._routing.given

    def look(self) -> MapRequest | None:
        """Return the map request to send first. None: ask `url` now."""
        untried = self._untried()
        look = self._routing.map_look((untried or self._routing.given)[0])
        if look is not None:
            return look
        for url in untried:
            if (look := self._routing.node_look(url)) is not None:
                return look
            if self._routing.may_be_asked(url):
                self.url = url
                return None
        self.url = self._routing.given[0]
        return None

    def answered(self, answer: Any = None) -> None:
        """Note the answer of `url`."""
        self._affinity.url = self.url
        self._routing.answered(self.url, answer)

    def pause_s(self, error: StatelineError) -> float | None:
        """Return the seconds to wait before the next attempt: 0 while another server can be asked. None: give up and
        raise this failure."""
        if self.goes_elsewhere(error):
            return 0.0
        self._tried.clear()
        self._hint = ""
        return self._attempts.pause_s(self._request, error, several=self._routing.several)

    def goes_elsewhere(self, error: StatelineError) -> bool:
        """Note this failure of `url`. Returns whether another server may be asked at once."""
        self._tried.add(self.url)
        self._routing.failed(self.url, error)
        if isinstance(error, UnreachableError):
            may = not error.sent or (self._request.is_read and self._attempts.left_s > 0)
        else:
            may = self._request.is_read and isinstance(error, NotPresentError | NotReadyError)
        if isinstance(error, NotPresentError):
            self._hint = (error.problem.owner or "").rstrip("/")
        return may and bool(self._untried())

    def _untried(self) -> list[str]:
        begun = self._hint if self._routing.is_node(self._hint) else self._affinity.url
        return [url for url in self._routing.candidates(self._request.home, begun) if url not in self._tried]
