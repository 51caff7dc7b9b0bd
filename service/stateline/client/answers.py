"""Turn a received reply into a result, or into an exception."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from stateline.client.events import Event
from stateline.client.failures import BY_REASON, GatewayError, RequestError, UnexpectedAnswerError, UnreachableError
from stateline.client.nodes import Nodes
from stateline.client.passing import PASSING, retry_after_s
from stateline.client.requests import JsonKey
from stateline.client.results import (
    CountAnswer,
    Entry,
    ExactCountAnswer,
    Instances,
    KeyAnswer,
    KeyedWindow,
    KeysAnswer,
    Page,
    PositionAnswer,
    Problem,
    Readiness,
    SnapshotDetails,
    SnapshotList,
    StoreDetails,
    Stores,
    Topology,
    Version,
    Window,
)
from stateline.problem_kinds import PROBLEMS, Retried
from stateline.serde.plain import FloatSerde, JsonSerde
from stateline_store import InvalidArgumentError, Position, StatelineError

T = TypeVar("T")
# A change feed that ends for one of these reasons is continued after the last change.
_GOES_ON = {row.reason for row in PROBLEMS.values() if row.retried is not Retried.NO} | {"TOO_SLOW"}
_EXACT, _FLOAT = JsonSerde(), FloatSerde()
_SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")
_PROBLEM: TypeAdapter[Problem] = TypeAdapter(Problem)


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its status, its headers by lower-case name, and its whole body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class AnswerReader(Generic[T]):
    """Reads replies as one type of result. Replies of `statuses` have it. Thread-safe."""

    def __init__(self, result: type[T], statuses: Collection[int] = (200,)) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(result)
        self._statuses = statuses

    def read(self, reply: Reply) -> T:
        """Return the result. Raises the `RequestError` of a reply without one."""
        if reply.status not in self._statuses or _is_problem(reply):
            raise failure_of(reply)
        return self.from_json(reply.content, _document(reply))

    def from_json(self, content: bytes | str, document: Any) -> T:
        """Return the result in this document, which was read from `content`. Raises `UnexpectedAnswerError` if it does
        not fit."""
        entries = document.get("entries") if isinstance(document, dict) else None
        for each in [document, *(entries if isinstance(entries, list) else ())]:
            if isinstance(each, dict) and isinstance(text := each.get("key_text"), str):
                each["key"] = _key(each.get("key"), text)
        try:
            return self._adapter.validate_python(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            why = f"it is not an answer of Stateline: {where}: {first['msg']}"
            raise unexpected(content, why) from error


class _Readiness(AnswerReader[Readiness]):
    """Reads `/readyz`. Its problem NOT_READY is a result here."""

    def read(self, reply: Reply) -> Readiness:
        if reply.status == HTTPStatus.OK:
            return Readiness(ready=True)
        failure = failure_of(reply)
        if failure.problem.reason != "NOT_READY":
            raise failure
        return Readiness(ready=False, reasons=failure.problem.reasons)


class _Nothing(AnswerReader[None]):
    """Reads an answer without a body, like 204."""

    def __init__(self, statuses: Collection[int]) -> None:
        super().__init__(type(None), statuses)

    def read(self, reply: Reply) -> None:
        if reply.status not in self._statuses:
            raise failure_of(reply)


KEY = AnswerReader(KeyAnswer, (200, 404))  # an absent key is 404 with the ordinary answer
KEYS = AnswerReader(KeysAnswer)
ENTRIES = AnswerReader(Page[Entry])
VERSIONS = AnswerReader(Page[Version])
WINDOWS = AnswerReader(Page[Window])
KEYED_WINDOWS = AnswerReader(Page[KeyedWindow])
COUNT = AnswerReader(CountAnswer)
EXACT_COUNT = AnswerReader(ExactCountAnswer)
POSITION = AnswerReader(PositionAnswer)
DETAILS = AnswerReader(StoreDetails)
STORES = AnswerReader(Stores)
TOPOLOGY = AnswerReader(Topology)
INSTANCES = AnswerReader(Instances)
NODES = AnswerReader(Nodes)
READINESS = _Readiness(Readiness)
SNAPSHOT = AnswerReader(SnapshotDetails, (200, 201))
SNAPSHOTS = AnswerReader(SnapshotList)
NOTHING = _Nothing((200, 204))


def _key(shown: Any, text: str) -> JsonKey | float:
    """Return a key that can be sent back. JSON has no NaN or infinity, and many texts for one value."""
    if shown is None and text.startswith(_SPECIAL_FLOATS):
        return _FLOAT.deserialize(_FLOAT.parse_text(text))
    return JsonKey(text, shown)


def failure_of(reply: Reply) -> RequestError:
    """Return the exception for a reply that is a problem document, or not Stateline's."""
    retry_s = retry_after_s(reply.headers.get("retry-after", ""), datetime.now(UTC))
    if not _is_problem(reply):
        if reply.status in PASSING:
            detail = "Something in between answered for the server: ask again."
            stand_in = Problem(reason="UNEXPECTED_ANSWER", detail=detail, status=reply.status, retry_after_s=retry_s)
            return GatewayError(stand_in)
        why = "it is not an answer of Stateline. Look at the address, and at what is in between"
        return unexpected(reply.content, why, reply.status)
    try:
        problem = _PROBLEM.validate_python(_document(reply))
    except ValidationError:
        return unexpected(reply.content, "it is a problem document that cannot be read", reply.status)
    return _failure(replace(problem, retry_after_s=retry_s))


def json_document(text: str) -> dict[str, Any]:
    """Return the JSON object of an event or a header. Raises `UnexpectedAnswerError` if it is not an object."""
    document = _document(Reply(HTTPStatus.OK, {}, text.encode()))
    if not isinstance(document, dict):
        raise unexpected(text, "it is not a JSON object")
    return document


def event_failure(event: Event) -> StatelineError:
    """Return the error of the last event of a change feed. `UnreachableError` means that the feed can continue
    later."""
    document = json_document(event.data)
    reason, detail = str(document.get("reason")), str(document.get("detail"))
    if reason in _GOES_ON:
        return UnreachableError(f"The server has ended the change feed ({reason}): {detail}")
    return _failure(Problem(reason=reason, detail=detail, status=HTTPStatus.OK))


def stream_position(headers: Mapping[str, str]) -> Position:
    """Return the Position in a stream's headers. Raises `UnexpectedAnswerError` if there is none."""
    text = headers.get("stateline-position", "")
    try:
        return Position.from_json(json_document(text))
    except InvalidArgumentError as error:
        raise unexpected(text, "its Position cannot be read") from error


def _is_problem(reply: Reply) -> bool:
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/problem+json"


def _document(reply: Reply) -> Any:
    try:
        return _EXACT.deserialize(reply.content)
    except InvalidArgumentError as error:
        raise unexpected(reply.content, "it is not JSON", reply.status) from error


def _failure(problem: Problem) -> RequestError:
    return BY_REASON.get(problem.reason, UnexpectedAnswerError)(problem)


def unexpected(content: bytes | str, why: str, status: int = HTTPStatus.OK) -> UnexpectedAnswerError:
    """Return the error for content that is not an answer, or not a whole one."""
    detail = f"An answer cannot be used: {why}. It begins {content[:80]!r}."
    return UnexpectedAnswerError(Problem(reason="UNEXPECTED_ANSWER", detail=detail, status=status))
