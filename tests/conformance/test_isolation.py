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

from conformance.isolation import LEVELS, STORES, Answered, Entries, Question, Sides, both_running
from stateline_store import IsolationLevel
from support.kafka.java_streams import GAP_MS, GRACE_MS, HISTORY_MS, SIZE_MS, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import eventually
from support.run.length import long_or_short

COMPARED = long_or_short(10_000, 500)
KILLS = long_or_short(6, 2)
_SHOWN = 5
_UNCOMMITTED_AT_MOST = 200  # records
_COMMITTED, _UNCOMMITTED = LEVELS


@dataclass(frozen=True)
class Difference:
    """Two answers at one Position. `restarted`: both were killed before. `newest_ms` is the largest timestamp of all
    input, when they were asked."""

    sides: Sides
    question: Question
    level: IsolationLevel
    java: Answered
    ours: Answered
    restarted: bool
    newest_ms: int

    @property
    def kind(self) -> str:
        return self.question.words[0]

    @property
    def stream_time_ms(self) -> int:
        return self.sides.stream_time(self.question.store, self.ours.offset)

    @property
    def added(self) -> Entries:
        """What Java has besides."""
        return [entry for entry in self.java.entries if entry not in self.ours.entries]

    @property
    def lacking(self) -> Entries:
        """What Java has not."""
        return [entry for entry in self.ours.entries if entry not in self.java.entries]

    @property
    def before(self) -> range:
        """The offsets before this Position that were uncommitted with it, and more."""
        return range(max(self.ours.offset - _UNCOMMITTED_AT_MOST, 0), self.ours.offset)

    def have_expired(self, entries: Entries, stream_time_ms: int) -> bool:
        """Whether the store no longer shows any of these windows or sessions at this stream time."""
        if self.question.store == "tumbling":
            return all(start <= stream_time_ms - SIZE_MS - GRACE_MS for _, start, *_ in entries)
        return all(end <= stream_time_ms - GAP_MS - GRACE_MS for _, _, end, *_ in entries)

    def in_history(self, versions: Entries) -> Entries:
        since_ms = self.stream_time_ms - HISTORY_MS
        return sorted((each for each in versions if each[2] is None or each[2] > since_ms), key=repr)


def _expires_early(it: Difference) -> bool:
    """Uncommitted puts move the only stream time, so windows and sessions expire before they are committed."""
    in_time = it.question.store in ("tumbling", "session") and it.level is _COMMITTED
    return in_time and it.added == [] and it.have_expired(it.lacking, it.newest_ms)


def _has_the_versions_of_the_commit_before(it: Difference) -> bool:
    """A versioned store answers with the newest Position and the versions of an earlier one: READ_COMMITTED those of
    the commit before, READ_UNCOMMITTED seldom."""
    if it.question.store != "versioned":
        return False
    key, theirs = it.question.words[1], it.in_history(it.java.entries)
    return any(theirs == it.in_history(it.sides.versions(key, offset)) for offset in it.before)


def _mixes_two_positions(it: Difference) -> bool:
    """A READ_UNCOMMITTED answer of a versioned store may mix the versions of its Position and of an earlier one: it
    reads the newest version and the segments one after the other."""
    if it.question.store != "versioned" or it.level is not _UNCOMMITTED:
        return False
    theirs, ours = ({*it.in_history(each.entries)} for each in (it.java, it.ours))
    found = ({*it.in_history(it.sides.versions(it.question.words[1], offset))} for offset in it.before)
    return any(theirs <= then | ours and then & ours <= theirs for then in found)


def _shows_old_versions(it: Difference) -> bool:
    """A versioned store shows versions that ended before its history, until their segment is dropped."""
    if it.question.store != "versioned" or it.lacking:
        return False
    return it.in_history(it.added) == []


def _ignores_the_upper_bound(it: Difference) -> bool:
    """A READ_UNCOMMITTED range with only an upper bound ignores it, and has rows beyond the bound."""
    if it.kind != "range" or it.level is not _UNCOMMITTED:
        return False
    _, lower, upper = it.question.words
    return lower == "-" and upper != "-" and it.lacking == [] and all(entry[0] > upper for entry in it.added)


def _reads_ahead(it: Difference) -> bool:
    """A READ_COMMITTED scan of tumbling windows has windows that are newer than its Position: it opens segment after
    segment, and takes no snapshot."""
    if it.question.store != "tumbling" or it.level is not _COMMITTED:
        return False
    java = {entry[:2]: entry for entry in it.java.entries}
    for entry in it.added:
        counts = it.sides.counts(entry[0], entry[1], len(it.sides.sent["events"]))
        before = it.sides.counts(entry[0], entry[1], it.ours.offset + 1)
        if counts.get(entry[4]) != entry[3] or int(entry[4]) <= len(before):
            return False
    return all(entry[:2] in java or it.have_expired([entry], it.newest_ms) for entry in it.lacking)


def _forgot_stream_time(it: Difference) -> bool:
    """Stream time is forgotten at a restart. So late records are accepted: a closed window counts more of them. And
    what has expired is shown again."""
    if not it.restarted or it.question.store not in ("tumbling", "session"):
        return False
    java = {entry[:2]: int(entry[4]) for entry in it.added if it.question.store == "tumbling"}
    counts_more = all(java.get(entry[:2], 0) > int(entry[4]) for entry in it.lacking)
    return counts_more and it.have_expired(it.added, it.stream_time_ms)


KNOWN: dict[str, Callable[[Difference], bool]] = {
    each.__name__: each
    for each in (
        _expires_early,
        _shows_old_versions,
        _has_the_versions_of_the_commit_before,
        _mixes_two_positions,
        _ignores_the_upper_bound,
        _reads_ahead,
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
                newest_ms = self.sides.stream_times[STORES[question.store]][-1]
                self._differs(Difference(self.sides, question, level, java, ours, self.restarted, newest_ms))
        committed, uncommitted = (found[level][1] for level in LEVELS)
        self.staged += committed is not None and uncommitted is not None and committed.offset < uncommitted.offset

    def _differs(self, difference: Difference) -> None:
        name = next((name for name, is_it in KNOWN.items() if is_it(difference)), None)
        if name is None:
            self.unknown.append(difference)
        else:
            self.known[name] += 1


@pytest.fixture
def sides(kafka_broker: SharedBroker, tmp_path: Path) -> Iterator[Sides]:
    needed(class_path)
    with both_running(kafka_broker.bootstrap_servers, "isolation-", tmp_path) as made:
        yield made


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
    told = "\n".join(_shown(each) for each in comparison.unknown[:_SHOWN])
    assert not told, f"{len(comparison.unknown)} new differences: {told}"
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
    times = each.sides.stream_times[STORES[each.question.store]]
    sent = [
        (offset, value, at_ms, times[offset])
        for offset, (key, value, at_ms) in enumerate(each.sides.sent[STORES[each.question.store]])
        if key in {entry[0] for entry in lost + added}
    ]
    return (
        f"{each.level.name} {each.question} at {each.ours.offset}{' after a restart' * each.restarted}: "
        f"Java lacks {lost}, has besides {added}. Offsets, values, timestamps and stream times of its input: {sent}"
    )
