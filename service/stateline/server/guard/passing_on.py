"""Who asks, where a node asks another one for it: a proof of the token goes along (`proofs`), and the node that answers
checks it by its own tokens. So nobody reads of a node what that node would refuse, whichever is asked.
"""

from __future__ import annotations

from contextvars import ContextVar

from stateline.server.guard.caller import forbidden
from stateline.server.guard.proofs import Proof, ProvenConnection, Shown
from stateline.server.guard.tokens import Tokens
from stateline_store import UnauthenticatedError

PROVEN = "Proven"
"""In the header `Authorization` between processes of one node: a proof of `of_node` follows."""
shown_token: ContextVar[Shown | None] = ContextVar("stateline_shown_token", default=None)


def note_shown(shown: Shown) -> None:
    """The request that this task answers came with this token; tasks that it starts know as well."""
    shown_token.set(shown)  # never reset: the server runs every request in a context of its own


def token_to_pass_on() -> Shown | None:
    """The token that the request of this task came with; None without one, and where this node has no tokens."""
    return shown_token.get()


def of_node(key: bytes) -> ProvenConnection:
    """What proofs between the processes of one node are made for; `key` is known to these alone."""
    return ProvenConnection(b"processes of one node\0" + key)


def token_header(connection: ProvenConnection, asked: bytes) -> dict[str, str]:
    """The header by which another process of this node knows who asks; `asked` is the path with its query."""
    shown = token_to_pass_on()
    if shown is None:
        return {}
    if shown.token is not None:
        return {"authorization": f"Bearer {shown.token}"}
    return {"authorization": f"{PROVEN} {connection.prove(shown.digest, asked)}"}


def check_passed_on(tokens: Tokens | None, proof: Proof | None, store: str) -> None:
    """Whether this node lets the holder of a token that another node passes on read this store; `tokens` are those of
    this node, None where everybody may. Raises `UnauthenticatedError` or `ForbiddenError`."""
    if tokens is None:
        return
    if proof is None:
        raise UnauthenticatedError(
            "The node that has this wants a token, and the one that was asked has passed none on."
        )
    if not tokens.holder(proof).may_read(store):
        raise forbidden(store)
