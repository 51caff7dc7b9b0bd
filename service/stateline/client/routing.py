"""Which server each request is sent to: the owner of what is asked, where there are several nodes, else the URLs that
the client was given. Decided here, sent by `transport`.

- **Nothing is asked for it while there is one node.** Answers name the node of each partition where there are several;
  the first that does has the map asked (`GET /v1/nodes`), before the next request. So does every answer whose owner is
  another one than the map has, a node that is not reached, and 421.
- **A node is looked at before it is first asked**, with the same request: its URL may lead elsewhere, as that of
  another network or of a load balancer does. A URL that does not answer as that node of that application rests.
- **A URL that was not reached rests**, for longer each time; what it would have been asked goes to those that were
  given, or to any other node.
- **No URL is asked twice for one request** but after a pause of the retries.
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
"""How long a look at a node may take, and an owner's answer beyond what its query waits: there are others to ask."""
_FIRST_REST_S, _LONGEST_REST_S = 2.0, 300.0
# Between two looks at the map; longer each time when it had not changed, or was not had.
_MAP_INTERVAL_S, _LONGEST_MAP_INTERVAL_S = 0.2, 30.0


@dataclass(frozen=True, slots=True)
class MapRequest:
    """A URL where `GET /v1/nodes` is to be asked: as the node that it should be, or (None) for the map."""

    url: str
    owner: Owner | None = None


@dataclass
class Affinity:
    """The server that has begun something, and is asked first for the rest of it."""

    url: str | None = None


class _Rests:
    """Which URLs are not asked for now."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # and how long it was

    def begin(self, url: str) -> None:
        """Not now: twice as long as last time."""
        _, lasted_s = self._until.get(url, (0.0, _FIRST_REST_S / 2))
        rest_s = min(2 * lasted_s, _LONGEST_REST_S)
        self._until[url] = time.monotonic() + rest_s, rest_s

    def forget(self, url: str) -> None:
        """It has answered."""
        self._until.pop(url, None)

    def rests(self, url: str) -> bool:
        """Whether it is not asked for now."""
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
        """Whether there are several nodes, as far as is known."""
        return self._map is not None

    def candidates(self, home: Home | None, begun: str | None) -> list[str]:
        """Return the URLs to ask, in order: where it was begun, the owner, the given ones, any other node. Given
        URLs that rest come last. Other resting URLs are left out."""
        with self._lock:
            known = self._map
            owner = None if known is None or home is None else known.owner(home)
            first = [begun, None if owner is None else owner.url]
            others = [] if known is None else list(known.owners)
            urls = dict.fromkeys(url for url in [*first, *self.given, *others] if url is not None)
            awake = [url for url in urls if not self._rests.rests(url)]
            return awake + [url for url in self.given if url not in awake]

    def map_look(self, url: str) -> MapRequest | None:
        """The look for the map, at this URL, if it is time for one; who gets it says `looked`."""
        with self._lock:
            if not self._stale or None in self._looking or time.monotonic() < self._map_at_s:
                return None
            self._looking.add(None)
            return MapRequest(url)

    def node_look(self, url: str) -> MapRequest | None:
        """The look at this URL of a node, who gets it says `looked`. None when it can be asked, or is being looked at
        (`may_be_asked`)."""
        with self._lock:
            owner = None if self._map is None else self._map.owners.get(url)
            if owner is None or self._is_known(url, owner) or url in self._looking:
                return None
            self._looking.add(url)
            return MapRequest(url, owner)

    def may_be_asked(self, url: str) -> bool:
        """Whether this is one of the given URLs, or the node that it should be."""
        with self._lock:
            owner = None if self._map is None else self._map.owners.get(url)
            return self._is_known(url, owner)

    def looked(self, look: MapRequest, found: Nodes | None) -> None:
        """Take the result of a look. None: it has failed, or was given up."""
        with self._lock:
            if look.owner is None:
                self._looking.discard(None)
                self._learn(found)
            else:
                self._looking.discard(look.url)
                self._prove(look.owner, found)

    def answered(self, url: str, answer: Any) -> None:
        """This URL has answered."""
        with self._lock:
            self._rests.forget(url)
            if self._ask_owners and isinstance(answer, Answer) and not self._stale:
                self._stale = not all(self._fits(answer.store, p, each) for p, each in answer.partitions.items())

    def failed(self, url: str, error: StatelineError) -> None:
        """This URL has not answered, or refused."""
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
        """Whether the map has a node there that may be asked."""
        return self._map is not None and url in self._map.owners

    def _is_known(self, url: str, owner: Owner | None) -> bool:
        return url in self.given or (owner is not None and self._proven.get(url) == owner)

    def _fits(self, store: str, partition: int, each: Any) -> bool:
        if self._map is None:
            return each.node is None
        return each.served_by != "active" or self._map.agrees(store, partition, each.node)

    def _learn(self, found: Nodes | None) -> None:
        """Called with the lock."""
        changed = False
        if found is not None:
            changed = self._found is None or found.number != self._found.number
            self._found, self._stale = found, False
            self._map = OwnerMap(found, self.given) if len(found.nodes) > 1 else None
        self._map_interval_s = _MAP_INTERVAL_S if changed else min(2 * self._map_interval_s, _LONGEST_MAP_INTERVAL_S)
        self._map_at_s = time.monotonic() + self._map_interval_s

    def _prove(self, owner: Owner, found: Nodes | None) -> None:
        """Called with the lock."""
        is_it = found is not None and self._map is not None and found.application == self._map.application
        if is_it and found is not None and found.node == owner.node:
            self._proven[owner.url] = owner
            self._rests.forget(owner.url)
        else:
            self._rests.begin(owner.url)


class Route:
    """One request's way through the servers. For one thread or task."""

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
        """Whom to ask now, once nothing is left to be looked at."""

    @property
    def is_direct(self) -> bool:
        """Whether that is a node that the client was not given: there are others to ask when it is silent."""
        return self.url not in self._routing.given

    def look(self) -> MapRequest | None:
        """Return the request to send before the next URL is asked. None: nothing to send, and `url` is to be asked."""
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
        """It has."""
        self._affinity.url = self.url
        self._routing.answered(self.url, answer)

    def pause_s(self, error: StatelineError) -> float | None:
        """How long to wait before the next attempt: not at all while there is somebody else to ask. None when there is
        none, and this failure is the answer."""
        if self.goes_elsewhere(error):
            return 0.0
        self._tried.clear()
        self._hint = ""
        return self._attempts.pause_s(self._request, error, several=self._routing.several)

    def goes_elsewhere(self, error: StatelineError) -> bool:
        """Whether somebody else may be asked at once, after this failure: what it was is remembered."""
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
