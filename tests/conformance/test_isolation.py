"""At equal Positions, each query at each isolation level has the answer of Kafka Streams 4.4's transactional stores.

Both programs read one input while it flows, commit every second under exactly-once, and are killed at the same moments.
Kafka Streams' own defects are named here, one by one: a difference without a name fails the test.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.isolation import LEVELS, STORES, Answered, Question, Sides, both_running
from stateline_store import IsolationLevel
from support.kafka.java_streams import HISTORY_MS, class_path
from support.kafka.kafka_broker import missing_is_a_failure
from support.kafka.maven import JarsUnavailableError
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import eventually
from support.run.length import long_or_short

COMPARED = long_or_short(10_000, 500)
KILLS = long_or_short(6, 2)
_SHOWN = 5
_COMMITTED, _UNCOMMITTED = LEVELS


@dataclass(frozen=True)
class Difference:
    """Two answers at one Position. `restarted`: both were killed before."""

    question: Question
    level: IsolationLevel
    java: Answered
    ours: Answered
    restarted: bool
    stream_time_ms: int

    @property
    def kind(self) -> str:
        return self.question.words[0]


def _expires_early(it: Difference) -> bool:
    """Uncommitted puts move the only stream time, so windows and sessions expire before they are committed."""
    in_time = it.question.store in ("tumbling", "session")
    return in_time and it.level is _COMMITTED and set(it.java.entries) < set(it.ours.entries)


def _has_an_older_version(it: Difference) -> bool:
    """A versioned store answers READ_COMMITTED with the uncommitted Position and older versions."""
    lacks_one = not set(it.ours.entries) <= set(it.java.entries)
    return it.question.store == "versioned" and it.level is _COMMITTED and lacks_one


def _shows_old_versions(it: Difference) -> bool:
    """A versioned store shows versions that ended before its history, until their segment is dropped."""
    more = [entry for entry in it.java.entries if entry not in it.ours.entries]
    ended = all(entry[2] is not None and entry[2] <= it.stream_time_ms - HISTORY_MS for entry in more)
    return it.question.store == "versioned" and ended and set(it.ours.entries) < set(it.java.entries)


def _ignores_the_upper_bound(it: Difference) -> bool:
    """A READ_UNCOMMITTED range with only an upper bound ignores it."""
    above = it.kind == "range" and it.question.words[1] == "-" and it.question.words[2] != "-"
    return above and it.level is _UNCOMMITTED and set(it.ours.entries) < set(it.java.entries)


def _forgot_stream_time(it: Difference) -> bool:
    """Stream time is forgotten at a restart: late records are accepted, and what has expired is shown again."""
    theirs, ours = (sum(int(entry[-1]) for entry in each.entries) for each in (it.java, it.ours))
    return it.restarted and it.question.store in ("tumbling", "session") and theirs >= ours


KNOWN: dict[str, Callable[[Difference], bool]] = {
    each.__name__: each
    for each in (
        _expires_early,
        _shows_old_versions,
        _has_an_older_version,
        _ignores_the_upper_bound,
        _forgot_stream_time,
    )
}


@dataclass
class Comparison:
    """Every answer so far by question and Position, whichever level it was asked at, and what became of each pair."""

    sides: Sides
    compared: Counter[str] = field(default_factory=Counter)
    staged: int = 0
    known: Counter[str] = field(default_factory=Counter)
    unknown: list[Difference] = field(default_factory=list)
    ours: dict[tuple[Question, int], Answered] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    restarted: bool = False

    def ask(self) -> None:
        """Ask both one question at both levels."""
        question = self.sides.question()
        found = {level: (self.sides.of_java(question, level), self.sides.of_ours(question, level)) for level in LEVELS}
        for level, (java, ours) in found.items():
            if ours is not None:
                before = self.ours.setdefault((question, ours.offset), ours)
                if before != ours:
                    self.torn.append(f"{question} at {ours.offset}: {before.entries}, then {ours.entries}")
            if java is None or ours is None or java.offset != ours.offset or java.offset < 0:
                continue
            self.compared[question.store] += 1
            if java.entries != ours.entries:
                self._differs(
                    Difference(question, level, java, ours, self.restarted, self._stream_time(question, ours))
                )
        committed, uncommitted = (found[level][1] for level in LEVELS)
        self.staged += committed is not None and uncommitted is not None and committed.offset < uncommitted.offset

    def _stream_time(self, question: Question, answered: Answered) -> int:
        return self.sides.stream_time(question.store, answered.offset)

    def _differs(self, difference: Difference) -> None:
        name = next((name for name, is_it in KNOWN.items() if is_it(difference)), None)
        if name is None:
            self.unknown.append(difference)
        else:
            self.known[name] += 1


@pytest.fixture
def sides(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Sides]:
    try:
        class_path()
    except JarsUnavailableError as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        pytest.skip(str(error))
    with both_running(kafka_broker.bootstrap_servers, "isolation-", tmp_path) as made:
        yield made


@pytest.mark.timeout(3600)
def test_at_equal_positions_both_give_the_same_answer_at_each_isolation_level(sides: Sides) -> None:
    comparison = Comparison(sides)
    _until_both_answer(sides)
    for part in range(KILLS + 1):
        while comparison.compared.total() < COMPARED * (part + 1) // (KILLS + 1):
            sides.produce(sides.chance.randrange(1, 30))
            until_s = time.monotonic() + sides.chance.uniform(0.3, 1.3)
            while time.monotonic() < until_s:
                comparison.ask()
        if part < KILLS:
            sides.produce(20)
            sides.kill()
            comparison.restarted = True
            sides.produce(5)
            sides.start()
            _until_both_answer(sides)
    (sides.directory / "compared.txt").write_text(f"{comparison.compared} {comparison.staged} {comparison.known}")
    assert comparison.torn == [], "two answers of ours at one Position"
    assert [_shown(each) for each in comparison.unknown[:_SHOWN]] == [], f"{len(comparison.unknown)} new differences"
    assert set(comparison.compared) == set(STORES), "a store was never compared"
    assert comparison.staged, "nothing was uncommitted"


def _until_both_answer(sides: Sides) -> None:
    """Java answers from partial state while it restores, with an empty Position."""
    questions = [Question("count", ("key", "key-0")), Question("versioned", ("versions", "key-0"))]

    def answers() -> bool:
        assert sides.worker is not None
        assert sides.worker.poll() is None, (sides.directory / "worker.log").read_text()[-4000:]
        found = [ask(each, _COMMITTED) for ask in (sides.of_java, sides.of_ours) for each in questions]
        return all(each is not None and each.offset >= 0 for each in found)

    eventually(answers, "both answer")


def _shown(each: Difference) -> str:
    lost, added = (
        sorted({*a} - {*b}) for a, b in ((each.ours.entries, each.java.entries), (each.java.entries, each.ours.entries))
    )
    return f"{each.level.name} {each.question} at {each.ours.offset}: Java lacks {lost}, has besides {added}"
