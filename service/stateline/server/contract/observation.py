"""Notes about a request on its way through the code, for metrics and the access log. Never keys or values.

`MeasuringMiddleware` begins an `Observation` for each request. Code that learns something sets it at `observed()`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Observation:
    """One request. For the task that answers it, and the tasks that this one starts."""

    request_id: str
    level: str = ""
    """The isolation level of a query. Empty for other requests, and if it was refused before."""
    reason: str = ""
    """Of the problem that was answered (`problem_kinds.PROBLEMS`). Empty without one."""
    route: str = ""
    """A template, if the handler knows better than the router which route it is."""
    rows: int = 0
    """Entries that were answered so far."""
    is_relayed: bool = False
    """Whether another process of this server makes the answer."""
    token: str = ""
    """The name of the client's token. Empty without one."""


_current: ContextVar[Observation | None] = ContextVar("stateline_observation", default=None)


def begin(request_id: str) -> Observation:
    """Begin the observation that `observed` returns in this task from now on."""
    observation = Observation(request_id)
    _current.set(observation)  # never reset: the server runs every request in a context of its own
    return observation


def observed() -> Observation:
    """Return the observation of the request that this task answers. Outside a request it is one that nobody reads."""
    return _current.get() or Observation("")


def current_request_id() -> str | None:
    """Return the id of the request that this task answers; None outside a request."""
    observation = _current.get()
    return None if observation is None else observation.request_id
