"""What is tried again, and when; the sleeping is in `test_faults`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.client import NEVER, Problem, Retries, StatelineError, UnreachableError
from stateline.client import requests as sent
from stateline.client.failures import BY_REASON, GatewayError
from stateline.client.retries import Attempts
from stateline.client.terms import Terms

READ, CHANGE = sent.count("s", Terms()), sent.release("i")
LOST = UnreachableError("lost")


def failure(reason: str, status: int, retry_after_s: float | None = None) -> StatelineError:
    return BY_REASON[reason](Problem(reason=reason, detail="", status=status, retry_after_s=retry_after_s))


AGAIN = [failure("TOO_MANY_REQUESTS", 429), failure("NOT_ACTIVE", 503), failure("NOT_READY", 503), LOST]
FINAL = [
    failure("NOT_UP_TO_BOUND", 412),
    failure("NOT_PRESENT", 421),
    failure("DOES_NOT_EXIST", 404),
    failure("CURSOR_EXPIRED", 410),
    failure("INVALID_ARGUMENT", 422),
    failure("FORBIDDEN", 403),
    failure("STORE_EXCEPTION", 500),
    failure("SQL_TIMEOUT", 504),
]


@pytest.mark.parametrize("error", AGAIN, ids=str)
def test_what_can_pass_is_tried_again(error: StatelineError) -> None:
    assert Attempts(Retries()).pause_s(READ, error) is not None


@pytest.mark.parametrize("error", FINAL, ids=str)
def test_what_cannot_pass_is_final(error: StatelineError) -> None:
    assert Attempts(Retries()).pause_s(READ, error) is None


@pytest.mark.parametrize("error", AGAIN, ids=str)
def test_what_changes_something_is_never_sent_twice(error: StatelineError) -> None:
    assert Attempts(Retries()).pause_s(CHANGE, error) is None


def test_a_bound_that_was_not_reached_is_tried_again_when_asked() -> None:
    policy = Retries(statuses=frozenset({412}))
    assert Attempts(policy).pause_s(READ, failure("NOT_UP_TO_BOUND", 412)) is not None


@given(st.integers(1, 80), st.none() | st.floats(0, 20))
def test_a_pause_is_bounded_by_the_policy_and_no_shorter_than_asked(tries: int, asked_s: float | None) -> None:
    attempts = Attempts(Retries(deadline_s=1e9, first_pause_s=0.5, longest_pause_s=4))
    for n in range(tries):
        pause_s = attempts.pause_s(READ, failure("NOT_READY", 503, asked_s))
        assert pause_s is not None
        assert 0 <= pause_s - (asked_s or 0) <= min(0.5 * 2**n, 4) + 1e-9


def test_pauses_differ() -> None:
    pauses = {Attempts(Retries()).pause_s(READ, LOST) for _ in range(20)}
    assert len(pauses) > 15


def test_what_asks_for_more_time_than_is_left_is_final() -> None:
    assert Attempts(Retries(deadline_s=30)).pause_s(READ, failure("NOT_READY", 503, 31)) is None
    assert Attempts(Retries(deadline_s=30), wait_ms=5000).pause_s(READ, failure("NOT_READY", 503, 31)) is not None
    assert Attempts(NEVER).pause_s(READ, LOST) is None


def test_only_the_first_attempt_may_take_longer_than_the_deadline() -> None:
    attempts = Attempts(Retries(deadline_s=5))
    assert attempts.timeout_s(30) == 30
    attempts.pause_s(READ, GatewayError(Problem(reason="", detail="", status=502)))
    assert 4 < attempts.timeout_s(30) <= 5
    assert attempts.timeout_s(1) == 1
