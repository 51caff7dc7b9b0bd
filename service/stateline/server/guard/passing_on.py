"""Pass the caller's token on to other nodes: as a proof (`proofs`) that the answering node checks by its own tokens.

So a node never gives through another what it would refuse.
"""

from __future__ import annotations

from contextvars import ContextVar

from stateline.server.guard.caller import forbidden
from stateline.server.guard.proofs import Proof, Shown
from stateline.server.guard.tokens import Tokens
from stateline_store import UnauthenticatedError

shown_token: ContextVar[Shown | None] = ContextVar("stateline_shown_token", default=None)


def note_shown(shown: Shown) -> None:
    """Note that the request of this task, and of tasks that it starts, came with this token."""
    shown_token.set(shown)  # never reset: the server runs every request in a context of its own


def token_to_pass_on() -> Shown | None:
    """Return the token of this task's request; None without one, and if this node has no tokens."""
    return shown_token.get()


def check_passed_on(tokens: Tokens | None, proof: Proof | None, store: str) -> None:
    """Raise `UnauthenticatedError` or `ForbiddenError` unless the holder of a passed-on token may read this store.

    `tokens` are those of this node, None if everybody may.
    """
    if tokens is None:
        return
    if proof is None:
        raise UnauthenticatedError(
            "The node that has this wants a token, and the one that was asked has passed none on."
        )
    if not tokens.holder(proof).may_read(store):
        raise forbidden(store)
