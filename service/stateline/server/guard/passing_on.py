"""Who asks, where a node asks another one for it: the token goes along, and the node that answers looks at it by its
own tokens. So nobody reads of a node what that node would refuse, whichever is asked.
"""

from __future__ import annotations

from contextvars import ContextVar

from stateline.server.guard.caller import forbidden
from stateline.server.guard.tokens import Tokens
from stateline_store import UnauthenticatedError

_shown: ContextVar[str | None] = ContextVar("stateline_shown_token", default=None)


def note_shown(token: str) -> None:
    """The request that this task answers came with this token; tasks that it starts know as well."""
    _shown.set(token)  # never reset: the server runs every request in a context of its own


def token_to_pass_on() -> str | None:
    """The token that the request of this task came with; None without one, and where this node has no tokens."""
    return _shown.get()


def token_header() -> dict[str, str]:
    """The same, as the header of a request."""
    token = token_to_pass_on()
    return {} if token is None else {"authorization": f"Bearer {token}"}


def check_passed_on(tokens: Tokens | None, token: str | None, store: str) -> None:
    """Whether this node lets the holder of a token that another node passes on read this store; `tokens` are those of
    this node, None where everybody may. Raises `UnauthenticatedError` or `ForbiddenError`."""
    if tokens is None:
        return
    if token is None:
        raise UnauthenticatedError(
            "The node that has this wants a token, and the one that was asked has passed none on."
        )
    if not tokens.holder(token).may_read(store):
        raise forbidden(store)
