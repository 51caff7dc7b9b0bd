"""What is noted about a request on its way through the code, for metrics and the access log. Never keys or values.

The middleware of `metrics` begins an `Observation` for each request; whoever knows something of it notes it here.
Outside a request a note goes nowhere.
"""

from __future__ import annotations

from contextvars import ContextVar


class Observation:
    """One request. For the task that answers it, and the tasks that this one starts."""

    __slots__ = ("level", "reason", "request_id", "route", "rows", "token")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        """`stateline.server.contract.request_id`"""
        self.level = ""
        """The isolation level that a query used; empty when the request is none, or was refused before."""
        self.reason = ""
        """Of the problem that was answered (`problem_kinds.PROBLEMS`); empty when there was none."""
        self.route = ""
        """A template, where the handler knows better than the router which it was; empty where it does not."""
        self.rows = 0
        """Entries that were answered so far."""
        self.token = ""
        """The name of the token that the client showed; empty without one."""


_current: ContextVar[Observation | None] = ContextVar("stateline_observation", default=None)


def current_request_id() -> str | None:
    """The id of the request that this task answers; None outside a request."""
    observation = _current.get()
    return None if observation is None else observation.request_id


def begin(request_id: str) -> Observation:
    """What notes of this task go to from now on."""
    observation = Observation(request_id)
    _current.set(observation)  # never reset: the server runs every request in a context of its own
    return observation


def note_level(level: str) -> None:
    """This request is a query at this isolation level."""
    if (observation := _current.get()) is not None:
        observation.level = level


def note_reason(reason: str) -> None:
    """This request fails for this reason."""
    if (observation := _current.get()) is not None:
        observation.reason = reason


def note_route(template: str) -> None:
    """This request is one of this template, which is none that the router has."""
    if (observation := _current.get()) is not None:
        observation.route = template


def note_rows(count: int) -> None:
    """So many more entries were answered."""
    if (observation := _current.get()) is not None:
        observation.rows += count


def note_token(name: str) -> None:
    """The client showed the token of this name."""
    if (observation := _current.get()) is not None:
        observation.token = name
