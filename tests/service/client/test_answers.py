"""What comes back: results, problems and rubbish."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateline_store
from stateline.client import (
    GatewayError,
    NotUpToBoundError,
    Position,
    RequestError,
    UnexpectedAnswerError,
)
from stateline.client import (
    answers as read,
)
from stateline.client.answers import Reply
from stateline.client.failures import BY_REASON
from stateline.client.passing import retry_after_s
from stateline.problem_kinds import PROBLEMS
from stateline_store import RetryLaterError, StatelineError

PROBLEM = {"content-type": "application/problem+json"}
ANSWER: dict[str, Any] = {
    "store": "s",
    "isolation_level": "read_committed",
    "found": True,
    "key": "k",
    "value": {"a": 1},
    "timestamp": 7,
    "position": {"t": {"0": 5}},
    "partitions": {
        "0": {
            "position": {"t": {"0": 5}},
            "served_by": "active",
            "staged_records": 1,
            "staged_bytes": 9,
            "committed_at_ms": 8,
        }
    },
}


def reply(document: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, orjson.dumps(document))


def problem(reason: str, status: int, **members: Any) -> Reply:
    return Reply(status, PROBLEM, orjson.dumps({"reason": reason, "status": status, "detail": "why", **members}))


def test_an_answer_is_typed_and_frozen() -> None:
    answer = read.KEY.read(reply(ANSWER))
    assert answer.position == Position({"t": {0: 5}})
    assert answer.isolation_level is stateline_store.IsolationLevel.READ_COMMITTED
    assert answer.partitions[0].position == answer.position
    assert (answer.found, answer.value, answer.timestamp, answer.failures) == (True, {"a": 1}, 7, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.found = False  # type: ignore[misc]  # that is the point


def test_an_absent_key_is_an_answer_and_an_absent_store_is_not() -> None:
    assert not read.KEY.read(reply(ANSWER | {"found": False, "value": None}, 404)).found
    with pytest.raises(stateline_store.DoesNotExistError):
        read.KEY.read(problem("DOES_NOT_EXIST", 404))


def test_members_that_are_not_known_yet_are_left_alone() -> None:
    assert read.KEY.read(reply(ANSWER | {"served_from": "another machine"})).found


@given(st.integers() | st.text(st.characters(codec="utf-8")) | st.floats(allow_nan=False, allow_infinity=False))
def test_values_are_exact_however_large_they_are(value: Any) -> None:
    content = orjson.dumps(ANSWER | {"value": 0}).replace(b'"value":0', b'"value":' + stateline_json(value))
    assert read.KEY.read(Reply(200, {}, content)).value == value


def stateline_json(value: Any) -> bytes:
    return str(value).encode() if isinstance(value, int) else orjson.dumps(value)


def test_every_problem_of_the_server_has_an_exception_of_its_own() -> None:
    kinds: dict[str, type[Exception]] = {}
    for kind, row in PROBLEMS.items():
        kinds.setdefault(row.reason, kind)  # what a newer version wrote is no reason of its own: NOT_READY
        with pytest.raises(BY_REASON[row.reason]) as caught:
            read.COUNT.read(problem(row.reason, row.status))
        assert isinstance(caught.value, StatelineError)
        assert kinds[row.reason] is Exception or isinstance(caught.value, kinds[row.reason]), row.reason


def test_a_problem_carries_where_it_applies() -> None:
    where = {"store": "s", "partition": 2, "position": {"t": {"2": 1}}, "bound": {"t": {"2": 9}}, "owner": "w1"}
    failures = {"2": {"reason": "NOT_UP_TO_BOUND", "status": 412, "detail": "behind", "owner": "w1"}}
    answer = problem("NOT_UP_TO_BOUND", 412, **where, failures=failures)
    with pytest.raises(NotUpToBoundError) as caught:
        read.COUNT.read(answer)
    found = caught.value.problem
    assert (found.store, found.partition, found.owner, found.status) == ("s", 2, "w1", 412)
    assert (found.position, found.bound) == (Position({"t": {2: 1}}), Position({"t": {2: 9}}))
    assert found.failures[2].detail == "behind"
    assert str(caught.value) == "NOT_UP_TO_BOUND (412): why"
    assert isinstance(caught.value, stateline_store.NotUpToBoundError)
    assert pickle.loads(pickle.dumps(caught.value)).problem == found


def test_partitions_that_failed_stand_beside_the_answer() -> None:
    failures = {"1": {"reason": "NOT_PRESENT", "status": 421, "detail": "elsewhere", "owner": "w2"}}
    answer = read.KEY.read(reply(ANSWER | {"failures": failures}))
    assert (answer.failures[1].reason, answer.failures[1].owner) == ("NOT_PRESENT", "w2")


@pytest.mark.parametrize(
    "answer",
    [
        reply({"hello": "world"}),
        reply([1]),
        Reply(200, {}, b"<html>"),
        Reply(200, {}, b'{"store": "s", "isol'),
        Reply(500, {}, b"oops"),
        Reply(302, {"location": "http://elsewhere"}, b""),
        Reply(404, {}, b"<h1>Not Found</h1>"),
        reply(ANSWER | {"position": {"t": {"0": -1}}}),
        Reply(400, PROBLEM, b"{}"),
        Reply(400, PROBLEM, b"["),
        problem("SOMETHING_NEW", 400),
    ],
    ids=lambda answer: answer.content[:20].decode(),
)
def test_what_is_no_answer_of_stateline_is_told_as_such(answer: Reply) -> None:
    with pytest.raises(UnexpectedAnswerError):
        read.KEY.read(answer)


@given(st.binary(max_size=40), st.sampled_from([200, 404, 410, 500, 503]), st.booleans())
def test_no_bytes_raise_anything_but_a_request_error(content: bytes, status: int, is_problem: bool) -> None:
    with pytest.raises(RequestError):
        read.KEY.read(Reply(status, PROBLEM if is_problem else {}, content))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_gateway_that_answers_instead_can_be_asked_again(status: int) -> None:
    with pytest.raises(GatewayError) as caught:
        read.KEY.read(Reply(status, {"retry-after": "3"}, b"<h1>Bad</h1>"))
    assert isinstance(caught.value, RetryLaterError)
    assert (caught.value.problem.status, caught.value.problem.retry_after_s) == (status, 3.0)


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def after(text: str) -> float | None:
        return retry_after_s(text, now)

    assert after("120") == 120
    assert after(format_datetime(now + timedelta(seconds=90), usegmt=True)) == 90
    assert after(format_datetime(now - timedelta(seconds=90), usegmt=True)) == 0
    assert [after(text) for text in ("", "soon", "-5", "1.5", "9" * 400)] == [None] * 5


def test_a_service_that_is_not_ready_says_why() -> None:
    answer = read.READINESS.read(problem("NOT_READY", 503, reasons=["s-0 is being restored"]))
    assert (answer.ready, answer.reasons) == (False, ("s-0 is being restored",))
    assert read.READINESS.read(reply({"status": "ready"})).ready


def test_an_answer_without_a_body_is_read_by_its_status() -> None:
    read.NOTHING.read(Reply(204, {}, b""))
    with pytest.raises(stateline_store.DoesNotExistError):
        read.NOTHING.read(problem("DOES_NOT_EXIST", 404))
