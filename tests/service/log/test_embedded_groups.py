"""Steps of the embedded log's groups that members take at moments which a test of whole members cannot choose."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_file import LogFile, monotonic_ms
from stateline.log.embedded_group import Assignment, Claim, acquirable, assignments, heartbeat, join, leave, take
from stateline_store import TopicPartition
from support.log.log_bench import Bench, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def file(path: Path) -> Iterator[LogFile]:
    """The file of a log with the topics a and b, of two partitions each."""
    with closing(EmbeddedLog(path).admin()) as admin:
        admin.create_topics([NewTopic("a", 2), NewTopic("b", 2)])
    with closing(LogFile(path, 10_000)) as file:
        yield file


def join_now(file: LogFile, claim: Claim, topics: Collection[str] = ("a", "b")) -> None:
    with file.write() as sql:
        join(sql, claim, topics, session_timeout_ms=60_000)


def take_now(file: LogFile, claim: Claim) -> set[TopicPartition]:
    with file.write() as sql:
        return {row.partition for row in take(sql, claim, ())}


EVERYTHING = {TopicPartition(topic, n) for topic in ("a", "b") for n in (0, 1)}


def test_a_member_that_was_replaced_or_removed_takes_nothing(file: LogFile) -> None:
    old, new = Claim("g", "static", "its first life"), Claim("g", "static", "its second life")
    join_now(file, old)
    join_now(file, new)
    assert take_now(file, old) == set()
    assert take_now(file, new) == EVERYTHING
    with file.write() as sql:
        leave(sql, new)
    assert take_now(file, new) == set()


def test_a_number_of_which_another_member_owns_one_partition_is_taken_as_a_whole_or_not_at_all() -> None:
    def rows(owner_of_b0: str | None) -> list[Assignment]:
        owners = {("b", 0): owner_of_b0, ("a", 1): "other", ("b", 1): "other"}
        return [
            Assignment(n, partition, "other" if partition.partition == 1 else "me", owners.get(partition))
            for n, partition in enumerate(sorted(EVERYTHING))
        ]

    a0, b0 = TopicPartition("a", 0), TopicPartition("b", 0)
    assert acquirable(rows("other"), "me", (), "ab") == []
    assert [row.partition for row in acquirable(rows(None), "me", (), "ab")] == [a0, b0]
    assert [row.partition for row in acquirable(rows("me"), "me", (), "ab")] == [a0, b0]
    assert [row.partition for row in acquirable(rows(None), "me", [a0], "ab")] == [b0]


def test_a_number_goes_to_a_member_in_whole_once_the_members_of_other_topics_have_come_back_with_its_own(
    file: LogFile,
) -> None:
    one, other = Claim("g", "one", "1"), Claim("g", "other", "1")
    for claim in (one, other):
        join_now(file, claim, ["a"])
    again, other_again = Claim("g", "one", "2"), Claim("g", "other", "2")
    join_now(file, again)
    assert {partition.partition for partition in take_now(file, again)} == {0}
    join_now(file, other_again)
    assert take_now(file, other_again) == {TopicPartition("a", 1), TopicPartition("b", 1)}


def test_a_member_whose_heartbeat_is_from_before_a_restart_of_the_machine_is_removed(file: LogFile) -> None:
    lost, alive = Claim("g", "lost", "1"), Claim("g", "alive", "2")
    for claim in (lost, alive):
        join_now(file, claim)
        take_now(file, claim)
    with file.write() as sql:
        sql.execute("UPDATE members SET heartbeat_ms = ? WHERE member = 'lost'", (monotonic_ms() + 10**9,))
    with file.write() as sql:
        heartbeat(sql, alive)
        assert {row.target for row in assignments(sql, "g")} == {"alive"}
    take_now(file, alive)
    with file.write() as sql:
        assert {row.owner for row in assignments(sql, "g")} == {"alive"}


def test_a_topic_that_is_made_anew_is_assigned_with_all_its_partitions_to_those_who_are_there(path: Path) -> None:
    with closing(Bench(EmbeddedLog(path, session_timeout_ms=1000))) as bench:
        topic = bench.topic(2)
        member = bench.member("g", topic)
        until(lambda: len(member.owned) == 2, member)
        bench.admin.delete_topics([topic])
        until(lambda: not member.owned, member)
        bench.admin.create_topics([NewTopic(topic, 3)])
        until(lambda: len(member.owned) == 3, member)
        bench.write(topic, b"new", partition=2)
        until(lambda: [record.value for record in member.records] == [b"new"], member)
