"""Check the token of every request, as pure ASGI in front of all routes.

    route                                       needs
    /healthz, /readyz                           nothing; only holders of a token get the reasons
    the console's page and files                nothing: the page has no data, and asks for a token
    /v1/stores/{store}…                         a token that may read the store
    /v1/snapshots/{id}/stores/{store}…          the same; the handler checks every store of the snapshot
    /metrics                                    a token that may read every store, because labels name all
    every other route                           a token; if a body or a snapshot names the stores, the handler calls
                                                `require_read`

The token is in the header `Authorization: Bearer …` (RFC 6750), never in a URL, because URLs end up in logs. Without a
valid token the answer is 401. If the token may not read the store, it is 403, whether or not the store exists. Requests
count before this check, so guesses are limited, too.

The token is checked again when the answer begins, perhaps a minute later. If it was removed, changed or has expired
meanwhile, the answer is 401. A started stream is cut at its next piece, without the mark of a complete one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stateline.config.settings import Config
from stateline.server.contract.console_paths import is_of_console
from stateline.server.contract.observation import observed
from stateline.server.contract.openapi import Operation
from stateline.server.contract.problems import CHALLENGE, problem_response
from stateline.server.guard.caller import CALLER, caller_named, forbidden
from stateline.server.guard.cors import CorsMiddleware, cors_origins
from stateline.server.guard.limits import Limits
from stateline.server.guard.passing_on import note_shown
from stateline.server.guard.proofs import Proof, Shown
from stateline.server.guard.sites import Sites, SitesMiddleware
from stateline.server.guard.tokens import Credential, Token, Tokens, bearer_token
from stateline_store import ForbiddenError, TooManyRequestsError, UnauthenticatedError

# Routes of probes. No other client of the same address can exhaust their limit.
_PROBES = frozenset({"/healthz", "/readyz"})

PROOF = "stateline.proof"
"""The key of another node's proof in the scope. Clients cannot write there."""

COUNTED = "stateline.counted"
"""In the scope of a request that another request of the same caller has caused, and was counted for."""

# Routes that show every store.
_OF_ALL_STORES = frozenset({"/metrics"})

_POLICY_VIOLATION = 1008  # RFC 6455

_log = logging.getLogger(__name__)


class Admission(NamedTuple):
    """A request that may read a store. `token` is the token's name, empty without tokens. `is_valid` returns whether
    the same request would still be admitted; None if it always would."""

    token: str = ""
    is_valid: Callable[[], bool] | None = None


Admit = Callable[[Scope, str], Admission]


def install_guard(api: Starlette, config: Config, limits: Limits, tokens: Tokens | None) -> Admit | None:
    """Put the guard in front of `api`, if the settings need one. Without `tokens`, refuse web pages of other sites.

    Returns a function that guards a GET before the application sees it. It takes the scope and the store's name. It
    raises what refuses the request. Returns None if no request may be answered there.
    """
    if tokens is not None or limits.limits_rate:
        api.add_middleware(AccessMiddleware, tokens=tokens, limits=limits)
    guard = partial(_holder, tokens) if tokens is not None else _guarded_sites(api, config)
    if origins := cors_origins(config):
        api.add_middleware(CorsMiddleware, origins=origins, admit=partial(_asked_too_often, limits))
        guard = partial(_of_no_page, guard)
    return None if limits.limits_rate else guard  # a request that is declined there would count twice


def _asked_too_often(limits: Limits, scope: Scope) -> Response | None:
    try:
        _count(limits, None, scope)
    except TooManyRequestsError as error:
        return _refusal(error, scope)
    return None


def _count(limits: Limits, holder: Token | None, scope: Scope) -> None:
    client = scope["client"]
    # Without a client, another process of this server has counted it.
    if _route_path(scope) not in _PROBES and client is not None and COUNTED not in scope:
        limits.admit(caller_named(holder, client))


def _guarded_sites(api: Starlette, config: Config) -> Admit:
    sites = Sites(config)
    api.add_middleware(SitesMiddleware, sites=sites)
    return partial(_of_this_site, sites)


def _of_no_page(guard: Admit, scope: Scope, store: str) -> Admission:
    if any(name == b"origin" for name, _ in scope["headers"]):
        raise ForbiddenError("The middleware decides about requests of pages.")
    return guard(scope, store)


def _holder(tokens: Tokens, scope: Scope, store: str) -> Admission:
    holder = tokens.holder(bearer_token(scope["headers"]))
    _check_stores(holder, (store,))
    return Admission(holder.name, partial(tokens.is_valid, holder))


def _of_this_site(sites: Sites, scope: Scope, store: str) -> Admission:
    del store  # everybody reads every one
    sites.check(scope)
    return Admission()


def guarded(operations: Iterable[Operation], config: Config) -> tuple[Operation, ...]:
    """Return the operations with the answers that the guard may give instead of theirs."""
    return tuple(replace(o, problems=tuple(sorted({*o.problems, *_refusals(o.path, config)}))) for o in operations)


def _refusals(path: str, config: Config) -> set[int]:
    refusals = set()
    if config.server_tokens_file is None:
        refusals.add(403)
    elif not is_open(path):
        refusals |= {401, 403}
    if config.server_rate_limit > 0 and path not in _PROBES:
        refusals.add(429)
    return refusals


class AccessMiddleware:
    """Lets a request pass, or answers it. Without `tokens` everybody may ask, up to the limits."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None, limits: Limits) -> None:
        self._app, self._tokens, self._limits = app, tokens, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close everything that is not HTTP, because it has no guard."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._guard(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            holder = self._admitted(scope)
        except (UnauthenticatedError, ForbiddenError, TooManyRequestsError) as error:
            await _refusal(error, scope)(scope, receive, send)
            return
        if self._tokens is None:
            await self._app(scope, receive, send)
            return
        scope[CALLER] = holder
        if holder is None:
            await self._app(scope, receive, send)
        else:
            await self._watched(self._tokens, holder, scope, receive, send)

    def _admitted(self, scope: Scope) -> Token | None:
        """Return the token's holder; None if no token is needed. Raises what refuses the request."""
        path = _route_path(scope)
        holder, refused = None, None
        if self._tokens is not None:
            try:
                credential = self._credential(scope)
                holder = self._tokens.holder(credential)
                observed().token = holder.name
                note_shown(Shown(holder.digest, credential if isinstance(credential, str) else None))
            except UnauthenticatedError as error:
                refused = error
        _count(self._limits, holder, scope)
        if refused is not None and not is_open(path):
            raise refused
        if holder is not None:
            _check_stores(holder, stores_of(path, scope["raw_path"]))
            if path in _OF_ALL_STORES and holder.stores is not None:
                raise ForbiddenError(
                    f"{path} names every store: ask the operator for a token without a list of stores."
                )
        return holder

    def _credential(self, scope: Scope) -> Credential:
        """Return a client's token, or the proof of another node."""
        if (proof := scope.get(PROOF)) is not None:
            return cast(Proof, proof)
        return bearer_token(scope["headers"])

    async def _watched(self, tokens: Tokens, holder: Token, scope: Scope, receive: Receive, send: Send) -> None:
        is_cut = is_begun = False

        async def watch(message: Message) -> None:
            nonlocal is_cut, is_begun
            begins = message["type"] == "http.response.start"
            if (begins or message.get("more_body")) and not tokens.is_valid(holder):
                is_cut = True
                raise OSError("The token of this request is not valid any more.")  # as when the client had hung up
            is_begun |= begins
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            if not is_cut:
                raise
        if is_cut and not is_begun:
            error = UnauthenticatedError("The token is not valid any more: it was removed or changed meanwhile.")
            await _refusal(error, scope)(scope, receive, send)
        elif is_cut:
            _log.info("A stream of the token %r was cut off: it is not valid any more", holder.name)


def is_open(path: str) -> bool:
    return path in _PROBES or is_of_console(path)


def stores_of(path: str, raw_path: bytes) -> tuple[str, ...]:
    """Return the stores that a handler may read from this path.

    Some handlers read the decoded path and some the encoded one, where a `%2F` is no slash. The caller needs a right to
    both.
    """
    segments, raw_segments = path.split("/"), raw_path.split(b"/")
    match segments:
        case ["", "v1", "stores", _, *_]:
            at = 3
        case ["", "v1", "snapshots", _, "stores", _, *_]:
            at = 5
        case _:
            return ()
    encoded = raw_segments[at] if at < len(raw_segments) else b""
    return tuple(dict.fromkeys((segments[at], unquote_to_bytes(encoded).decode(errors="replace"))))


def _route_path(scope: Scope) -> str:
    """Return the path as routes see it: without the path that this application is mounted at."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _check_stores(holder: Token, stores: Iterable[str]) -> None:
    for store in stores:
        if not holder.may_read(store):
            raise forbidden(store)


def _refusal(error: UnauthenticatedError | ForbiddenError | TooManyRequestsError, scope: Scope) -> Response:
    stores = stores_of(_route_path(scope), scope["raw_path"]) if isinstance(error, ForbiddenError) else ()
    response = problem_response(error, store=next(iter(stores), None))
    if isinstance(error, UnauthenticatedError):
        was_given = any(name == b"authorization" for name, _ in scope["headers"])
        response.headers["WWW-Authenticate"] = CHALLENGE + (', error="invalid_token"' if was_given else "")
    return response
