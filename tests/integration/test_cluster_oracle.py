"""The oracle of several nodes sees what it is there for: an answer that is right is taken, and with one thing wrong it
is not. What watches answers of real nodes is held against wrong ones here.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from support.oracles.asked_changes import ChangeReader
from support.oracles.cluster_oracle import ClusterOracle, Question
from support.oracles.cluster_values import Expected, told
from support.oracles.history import History
from support.processes.host_nodes import may_end

TOPIC, SINCE_MS = "numbers", 1_000_000
INPUT = [(b"a", 150), (b"b", 7), (b"a", 151), (b"a", 151)]
ANSWERED = "application/json"
PLAIN: Mapping[str, str] = MappingProxyType({})


def oracle() -> ClusterOracle:
    return ClusterOracle(Expected(History([INPUT]), {"a": 0, "b": 0}, SINCE_MS), TOPIC)


def asked(
    at_s: float, shape: str = "counts", keys: tuple[str, ...] = ("a",), terms: Mapping[str, str] = PLAIN
) -> Question:
    return Question("one", shape, keys, terms, at_s, at_s + 0.5)


def answer(
    offset: int, role: str = "active", node: str = "one", lag_ms: int | None = None, **members: Any
) -> dict[str, Any]:
    """The count of `a` at this offset, unless `members` have something else."""
    times = [value for key, value in INPUT[: offset + 1] if key == b"a"]
    found = {"found": True, "key": "a", "value": [len(times), sum(times)]}
    position = {TOPIC: {"0": offset}}
    copy = {"position": position, "served_by": role, "node": node} | ({"lag_ms": lag_ms} if role == "standby" else {})
    return {**(members or found), "position": position, "partitions": {"0": copy}}


def sees(kind: str) -> Any:
    """Something of this kind is wrong within the block."""
    return pytest.raises(AssertionError, match=rf"^{kind}: ")


@pytest.mark.parametrize("role", ["standby", "restoring", "active"])
def test_an_older_copy_that_nobody_has_asked_for_is_seen_whatever_it_says_it_is(role: str) -> None:
    made = oracle()
    made.take(asked(1), 200, ANSWERED, answer(2))
    made.take(asked(1.2), 200, ANSWERED, answer(0, role))  # asked before that was answered
    with sees("backward"):
        made.take(asked(2), 200, ANSWERED, answer(1, role, node="two"))


def test_another_store_of_the_task_may_show_a_commit_a_moment_later() -> None:
    made = oracle()
    made.take(asked(1), 200, ANSWERED, answer(2))  # received at 1.5
    made.check_fresh(asked(3, "latest"), {0: 1})
    for shape, at_s in (("latest", 4), ("counts", 3)):
        with sees("backward"):
            made.check_fresh(asked(at_s, shape), {0: 1})


@pytest.mark.parametrize(
    "terms", [{"max_staleness_ms": "10"}, {"position_bound": json.dumps({TOPIC: {"0": 1}})}], ids=str
)
def test_an_older_copy_is_right_where_it_was_allowed(terms: dict[str, str]) -> None:
    made = oracle()
    made.take(asked(1), 200, ANSWERED, answer(2))
    made.take(asked(2, terms=terms), 200, ANSWERED, answer(1, "standby", lag_ms=10))
    with sees("backward"):
        made.take(asked(3, terms=terms), 200, ANSWERED, answer(1, "active"))


def test_a_copy_that_is_older_than_its_lag_says_or_than_was_allowed_is_seen() -> None:
    made = oracle()
    made.take(asked(1), 200, ANSWERED, answer(2))  # received at 1.5
    allowed, bounded = {"max_staleness_ms": "9000"}, {"position_bound": json.dumps({TOPIC: {"0": 1}})}
    for terms in (allowed, bounded):
        made.take(asked(10, terms=terms), 200, ANSWERED, answer(1, "standby", lag_ms=7_000))
        made.take(asked(10, terms=terms), 200, ANSWERED, answer(2, "standby", lag_ms=0))
        with sees("backward"):
            made.take(asked(10, terms=terms), 200, ANSWERED, answer(1, "standby", lag_ms=6_000))
    made.take(asked(20, terms=bounded), 200, ANSWERED, answer(1, "standby", lag_ms=None))
    made.take(asked(20, terms=allowed), 200, ANSWERED, answer(2, "standby", lag_ms=None))  # nobody else is there
    with sees("backward"):
        made.take(asked(20, terms=allowed), 200, ANSWERED, answer(1, "standby", lag_ms=None))
    made.take(asked(20, terms=allowed), 200, ANSWERED, answer(2, "standby", lag_ms=9_001))  # nor here
    with sees("backward"):
        made.take(asked(20, terms=allowed), 200, ANSWERED, answer(1, "standby", lag_ms=19_001))


def test_a_worker_that_gives_up_is_started_again_and_whatever_else_ends_by_itself_is_wrong() -> None:
    assert may_end("worker", 1)
    assert not any(may_end(what, code) for what, code in (("worker", -signal.SIGABRT), ("worker", 2), ("serve", 1)))


def test_an_answer_behind_its_bound_is_seen() -> None:
    made = oracle()
    with sees("backward"):
        made.take(
            asked(1, terms={"position_bound": json.dumps({TOPIC: {"0": 2}})}), 200, ANSWERED, answer(1, "standby")
        )


def test_a_standby_that_answers_for_the_owner_is_seen() -> None:
    for terms in ({"require_active": "true"}, {"isolation_level": "read_uncommitted"}):
        made = oracle()
        with sees("wrong"):
            made.take(asked(1, terms=terms), 200, ANSWERED, answer(2, "standby"))


def test_a_wrong_value_a_missing_row_and_a_missing_partition_are_seen() -> None:
    row = {"key": "a", "value": [2, 301]}
    wrong: list[dict[str, Any]] = [
        answer(2, found=True, key="a", value=[1, 150]),
        answer(2, found=False, key="a", value=None),
    ]
    for body in wrong:
        made = oracle()
        with sees("wrong"):
            made.take(asked(1), 200, ANSWERED, body)
    made = oracle()
    made.take(asked(1, keys=()), 200, ANSWERED, answer(2, entries=[row, {"key": "b", "value": [1, 7]}]))
    with sees("wrong"):
        made.take(asked(1, keys=()), 200, ANSWERED, answer(2, entries=[row]))
    with pytest.raises(AssertionError, match="comes twice"):
        told("counts", [row, row])
    with sees("wrong"):
        made.take(asked(1, keys=()), 200, ANSWERED, {"entries": [], "partitions": {}})
    for keys, missing in (((), "b"), (("a",), "a")):
        made = ClusterOracle(Expected(History([INPUT, []]), {"a": 0, "b": 1}, SINCE_MS), TOPIC)
        made.check_whole(asked(1, keys=keys), {0, 1})
        with sees("wrong"):
            made.check_whole(asked(1, keys=keys), {0, 1} - {made.expected.homes[missing]})
    made.check_whole(asked(1, keys=("a",)), {0})


def test_windows_sessions_and_versions_are_what_the_input_makes_of_them() -> None:
    made, at = oracle(), SINCE_MS + 150
    right: dict[str, list[dict[str, Any]]] = {
        "windows": [{"start": at - 50, "end": at + 50, "value": 3}],
        "sessions": [{"start": at + 1, "end": at + 1, "value": 2}],
        "versions": [{"timestamp": at + 1, "value": 2}, {"timestamp": at, "value": 1}],
    }
    for shape, entries in right.items():
        made.take(asked(1, shape), 200, ANSWERED, answer(3, entries=entries))
        made.check_rows(asked(1, shape), {0: 3}, told(shape, entries[:1], "a"), whole=False)
    for shape, entries in right.items():
        with sees("wrong"):
            made.take(asked(1, shape), 200, ANSWERED, answer(2, entries=entries))


def test_a_refusal_that_is_none_of_the_contract_is_seen() -> None:
    made = oracle()
    refused = "application/problem+json"
    made.take(asked(1), 421, refused, {"reason": "NOT_PRESENT", "detail": "Ask two."})
    made.refused(410, {"reason": "CURSOR_EXPIRED", "detail": "Begin anew."})
    for status, problem in (
        (500, {"reason": "STORE_EXCEPTION", "detail": "Look at the log."}),
        (503, {"reason": "NOT_PRESENT", "detail": "Ask two."}),
        (421, {"reason": "NOT_PRESENT"}),
        (410, {"reason": "CURSOR_EXPIRED", "detail": "Begin anew."}),
    ):
        with sees("other refusals"):
            made.take(asked(1), status, refused, problem)
    assert made.wrong["other refusals"] == 4


def test_two_that_have_a_task_in_one_generation_are_seen_and_so_is_one_that_moves_without_a_new_one() -> None:
    task = {"0_0": {"role": "active", "generation": 3}}
    made = oracle()
    made.claimed("one", task)
    with sees("two active"):
        made.claimed("two", task)
    made = oracle()
    made.claimed("one", task)
    made.take(asked(1), 200, ANSWERED, answer(2))
    made.check_moves()
    made.take(asked(2), 200, ANSWERED, answer(2, node="two"))
    with sees("two active"):
        made.check_moves()


def test_how_long_nobody_was_answered_is_counted_by_what_was_asked_for() -> None:
    made = oracle()
    made.gap_begins(0.25)
    stale, bounded = {"max_staleness_ms": "90000"}, {"position_bound": json.dumps({TOPIC: {"0": 1}})}
    made.take(asked(0.5), 200, ANSWERED, answer(2))  # each takes half a second
    made.take(asked(1.5, terms=bounded), 200, ANSWERED, answer(2))
    made.take(asked(2.5, terms=stale), 200, ANSWERED, answer(2, "standby", lag_ms=0))
    made.take(asked(3), 503, "application/problem+json", {"reason": "NOT_ACTIVE", "detail": "Ask again."})
    made.take(asked(3.5, terms={"require_active": "true"}), 200, ANSWERED, answer(2))
    assert made.new_gaps()["require_active"] == 3.75
    made.take(asked(8.5), 200, ANSWERED, answer(2))
    made.take(asked(9, terms=bounded), 200, ANSWERED, answer(2))
    assert "require_active" not in made.new_gaps()
    assert made.longest_gap_s == {
        "read_committed": 8.0, "position_bound": 7.5, "max_staleness_ms": 2.75, "require_active": 3.75, "any": 5.0,
    }  # fmt: skip


def test_a_change_that_is_lost_comes_twice_or_never_was_is_seen() -> None:
    first, second, third = (
        {"partition": 0, "offset": offset, "key": key.decode(), "value": value}
        for offset, (key, value) in enumerate(INPUT[:3])
    )
    for kind, changes in (
        ("backward", [first, third]),
        ("backward", [first, second, second]),
        ("wrong", [first, {**second, "value": 8}]),
    ):
        table = ChangeReader("newest", [], oracle(), TOPIC)
        for change in changes[:-1]:
            table.take(change)
        with sees(kind):
            table.take(changes[-1])
    counts = ChangeReader("counts", [], oracle(), TOPIC)
    counts.take({**third, "value": [2, 301]})
    assert not counts.has_all({0: 3})
    with sees("backward"):
        counts.take({**third, "offset": 5, "value": [1, 150]})
    counts.take({**third, "offset": 6, "value": [3, 452]})
    counts.take({**second, "offset": 7, "value": [1, 7]})
    assert counts.has_all({0: 3})
