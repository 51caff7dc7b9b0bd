"""The caller of a request and its rights. Handlers ask once the guard has let the request in (`access`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.requests import Request

from stateline.model.pipeline import Pipeline
from stateline.model.topology import Subtopology
from stateline.serde.plain import shown
from stateline.server.guard.tokens import Token
from stateline_store import ForbiddenError

CALLER = "stateline.caller"  # in the scope, where there are tokens: a Token, or None for somebody without one
_EVERYBODY = Token("everybody", b"", "admin", None, None)
_IPV6_NETWORK_BITS = 64  # what one customer is given at least: counting single addresses would count nothing

_MAX_ADDRESS = 64


def may_read(request: Request, store: str) -> bool:
    """Return whether the caller may read this store."""
    caller: Token | None = request.scope.get(CALLER, _EVERYBODY)
    return caller is not None and caller.may_read(store)


def is_known(request: Request) -> bool:
    """Return whether the caller has a token, if there are tokens."""
    return request.scope.get(CALLER, _EVERYBODY) is not None


def reads_all(request: Request) -> bool:
    """Return whether the caller may read every store, future ones included."""
    caller: Token | None = request.scope.get(CALLER, _EVERYBODY)
    return caller is not None and caller.stores is None


def name_of(request: Request) -> str | None:
    """Return the name of the caller's token; None without tokens."""
    caller: Token | None = request.scope.get(CALLER)
    return None if caller is None else caller.name


def caller_of(request: Request) -> str:
    """Return whom limits count this request for: the token by its name, or the address (`client_of`)."""
    return caller_named(request.scope.get(CALLER), request.scope["client"])


def caller_named(holder: Token | None, client: tuple[str, int] | None) -> str:
    """Return the same for a token's holder, if there is one, and a connection's address and port."""
    if holder is not None:
        return f"token {holder.name}"
    return "" if client is None else client_of(client[0])  # None: another process of this server


def require_owner(request: Request, owner: str | None) -> None:
    """Raise `ForbiddenError` unless the caller's token has this name or is an admin's. None is nobody's name. Without
    tokens, everybody may."""
    caller: Token | None = request.scope.get(CALLER, _EVERYBODY)
    if caller is None or (caller.role != "admin" and (owner is None or caller.name != owner)):
        raise ForbiddenError("Another token has made this: it can be changed with that one, or with an admin's.")


def require_read(request: Request, stores: Iterable[str]) -> None:
    """Raise `ForbiddenError` unless the caller may read all of these stores.

    For handlers whose path does not name them. Call it before saying whether they exist.
    """
    for store in stores:
        if not may_read(request, store):
            raise forbidden(store)


def require_everything(request: Request, what: str) -> None:
    """Raise `ForbiddenError` unless the caller may read every store, future ones included. `what` begins the message
    with its subject and verb."""
    if not reads_all(request):
        raise ForbiddenError(
            f"{what} told to a token that may read every store: ask the operator for one without a list of stores."
        )


def client_of(address: str) -> str:
    """Return the address that requests without a token are counted by; for IPv6 its network."""
    host = address[:_MAX_ADDRESS]
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_NETWORK_BITS), strict=False))
    except ValueError:
        return host  # what a proxy on this machine says in X-Forwarded-For need not be an address


def forbidden(store: str) -> ForbiddenError:
    return ForbiddenError(f"The token may not read the store {shown(store)}: ask the operator for one that may.")


def concerns(subtopology: Subtopology, request: Request) -> bool:
    """Return whether the caller may know of this subtopology: it may read one of its stores, or everything."""
    return reads_all(request) or any(may_read(request, store.name) for store in subtopology.stores)


def feeds(pipeline: Pipeline, subtopologies: Iterable[Subtopology], request: Request) -> bool:
    """Return whether the caller may know of this pipeline. `subtopologies` are those that it may know of."""
    sources = {topic.name for subtopology in subtopologies for topic in subtopology.sources}
    return reads_all(request) or any(t.name in sources for t in (pipeline.writes, *pipeline.branches))
