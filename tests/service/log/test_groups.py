"""What `stateline.log.interface` promises of consumer groups, on both logs."""

from __future__ import annotations

import pytest

from stateline.log.interface import OffsetNote
from stateline_store import FencedError, InvalidArgumentError, RetryLaterError, TopicPartition
from stateline_store.clock import boot_ms
from support.log.log_bench import Bench, Member, until


def _partitions(partitions: int, *topics: str) -> set[TopicPartition]:
    return {TopicPartition(topic, n) for topic in topics for n in range(partitions)}


def test_two_members_share_all_partitions_and_number_n_of_every_topic_goes_together(bench: Bench) -> None:
    a, b = bench.topic(4, "a"), bench.topic(4, "b")
    everything = _partitions(4, a, b)
    one, two = bench.member("g", a, b), bench.member("g", a, b)
    until(lambda: bool(one.owned and two.owned) and one.owned | two.owned == everything, one, two)
    assert not one.owned & two.owned
    for member in (one, two):
        numbers = {partition.partition for partition in member.owned}
        assert member.owned == {TopicPartition(topic, n) for topic in (a, b) for n in numbers}
        assert len(numbers) == 2


def test_on_revoked_has_run_before_anyone_else_is_assigned(bench: Bench) -> None:
    topic = bench.topic(4)
    one = bench.member("g", topic)
    until(lambda: len(one.owned) == 4, one)
    two = bench.member("g", topic)

    def check(partitions: list[TopicPartition]) -> None:
        assert not one.owned & set(partitions)

    two.after_assign = check
    until(lambda: len(one.owned) == 2 and len(two.owned) == 2, one, two)


def test_offsets_committed_in_on_revoked_are_where_the_next_owner_starts(bench: Bench) -> None:
    topic = bench.topic(2)
    for partition in (0, 1):
        bench.write(topic, b"a", b"b", b"c", partition=partition)
    one = bench.member("g", topic)
    one.before_revoke = lambda partitions: one.consumer.commit(dict.fromkeys(partitions, 2))
    until(lambda: len(one.records) == 6, one)
    two = bench.member("g", topic)
    until(lambda: len(one.owned) == 1 and len(two.records) >= 1, one, two)
    assert {record.offset for record in two.records} == {2}


def test_a_leaving_member_hands_everything_over(bench: Bench) -> None:
    topic = bench.topic(2)
    one, two = bench.member("g", topic), bench.member("g", topic)
    until(lambda: len(one.owned) == 1 and len(two.owned) == 1, one, two)
    one.consumer.close()
    assert one.owned == set()
    until(lambda: len(two.owned) == 2, two)


def test_a_group_without_offsets_starts_at_the_first_record_or_at_the_end(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, b"old")
    place = TopicPartition(topic, 0)
    first, last = bench.member("first", topic), bench.member("last", topic, reset="latest")
    until(lambda: bool(first.records) and last.owned == {place}, first, last)
    until(lambda: last.consumer.next_offset(place) is not None, last)
    bench.write(topic, b"new")
    until(lambda: bool(last.records) and len(first.records) == 2, first, last)
    assert [record.value for record in last.records] == [b"new"]
    assert [record.value for record in first.records] == [b"old", b"new"]


def test_a_partition_without_a_committed_offset_is_absent_and_0_is_an_offset(bench: Bench) -> None:
    topic = bench.topic(3)
    places = sorted(_partitions(3, topic))
    assert bench.admin.committed("never-seen", places) == {}
    member = bench.member("g", topic)
    until(lambda: len(member.owned) == 3, member)
    member.consumer.commit({places[0]: 0, places[1]: 5})
    assert bench.admin.committed(f"g-{bench.id}", places) == {places[0]: 0, places[1]: 5}


def test_a_group_confirms_its_member_and_shows_it_to_others(bench: Bench) -> None:
    topic, place = bench.topic(2), TopicPartition(bench.topic(name="nodes"), 0)
    began_ms = boot_ms()
    member = bench.member("g", topic)
    until(lambda: len(member.owned) == 2, member)
    member.consumer.commit({TopicPartition(topic, 0): 7})
    member.consumer.confirm_membership(place)
    until(lambda: (member.consumer.confirmed_at_ms or 0) >= began_ms, member)
    confirmed_ms = member.consumer.confirmed_at_ms
    assert confirmed_ms is not None
    assert confirmed_ms <= boot_ms()
    group = f"g-{bench.id}"
    assert [each.partitions for each in bench.admin.members(group)] == [member.owned]
    assert bench.admin.committed(group, [*member.owned, place]) in (
        {TopicPartition(topic, 0): 7},
        {TopicPartition(topic, 0): 7, place: 0},
    )
    assert [each.member_id for each in bench.admin.members(group)] == [member.consumer.member_id]
    member.consumer.close()
    assert member.consumer.member_id is None
    assert bench.admin.members(group) == []
    assert bench.admin.members("never-seen") == []


def test_seek_and_pause_in_on_assigned_decide_where_reading_starts(bench: Bench) -> None:
    topic = bench.topic(2)
    for partition in (0, 1):
        bench.write(topic, b"a", b"b", b"c", partition=partition)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member = bench.member("g", topic)

    def place(partitions: list[TopicPartition]) -> None:
        member.consumer.seek(a, 2)
        member.consumer.pause([b])

    member.after_assign = place
    until(lambda: bool(member.records), member)
    for written in range(1, 6):  # each comes by a fetch of its own, which would bring those of the other partition
        assert [(r.partition, r.offset) for r in member.records] == [(0, 2 + n) for n in range(written)]
        bench.write(topic, b"more", partition=0)
        until(lambda count=written + 1: len(member.records) >= count, member)  # type: ignore[misc]  # bound now
    member.consumer.resume([b])
    until(lambda: len(member.records) == 9, member)
    assert {record.offset for record in member.records if record.partition == 1} == {0, 1, 2}


def test_what_a_listener_raises_comes_out_of_poll(bench: Bench) -> None:
    member = bench.member("g", bench.topic())

    def fail(partitions: list[TopicPartition]) -> None:
        raise RuntimeError("the listener failed")

    member.after_assign = fail
    with pytest.raises(RuntimeError, match="the listener failed"):
        until(lambda: False, member)


def test_a_member_cannot_commit_what_it_does_not_own(bench: Bench) -> None:
    topic = bench.topic(2)
    one, two = bench.member("g", topic), bench.member("g", topic)
    until(lambda: len(one.owned) == 1 and len(two.owned) == 1, one, two)
    producer = bench.producer("x")
    producer.begin_transaction()
    everything = dict.fromkeys(one.owned | two.owned, 1)
    with pytest.raises(FencedError):
        one.consumer.commit(everything)
    with pytest.raises(FencedError):
        producer.send_offsets_to_transaction(everything, one.consumer)
    producer.abort_transaction()
    assert bench.admin.committed(f"g-{bench.id}", everything) == {}


def test_a_consumer_outside_the_group_cannot_commit_for_it(bench: Bench) -> None:
    topic = bench.topic()
    place = TopicPartition(topic, 0)
    outsider = bench.log.consumer(f"g-{bench.id}")
    bench.open.append(outsider)
    outsider.assign({place: 0})
    outsider.commit({place: 1})  # the group has no members yet
    member = bench.member("g", topic)
    until(lambda: member.owned == {place}, member)
    with pytest.raises(FencedError):
        outsider.commit({place: 2})
    assert bench.admin.committed(f"g-{bench.id}", [place]) == {place: 1}


def _static_pair(bench: Bench, topic: str) -> tuple[Member, Member]:
    one = bench.member("g", topic, instance_id="one")
    two = bench.member("g", topic, instance_id="two")
    until(lambda: len(one.owned) == 2 and len(two.owned) == 2, one, two)
    return one, two


def test_a_static_member_that_restarts_keeps_its_partitions(bench: Bench) -> None:
    topic = bench.topic(4)
    one, two = _static_pair(bench, topic)
    before, events = set(one.owned), len(two.events)
    one.consumer.close()
    assert one.owned == set()
    again = bench.member("g", topic, instance_id="one")
    until(lambda: len(again.owned) == 2, again, two)
    assert again.owned == before
    assert len(two.events) == events


def test_a_static_member_that_restarts_amid_a_rebalance_lets_go_of_what_is_meant_for_others(bench: Bench) -> None:
    topic = bench.topic(4)
    one = bench.member("g", topic, instance_id="one")
    until(lambda: len(one.owned) == 4, one)
    two = bench.member("g", topic, instance_id="two")
    two.consumer.poll(1, 0.5)  # joins: half of it is meant for it from now on, if it comes in time
    one.consumer.close()
    again = bench.member("g", topic, instance_id="one")
    until(lambda: len(again.owned) == 2 and len(two.owned) == 2, again, two)


def test_a_static_member_that_another_replaced_is_fenced(bench: Bench) -> None:
    topic = bench.topic(4)
    one, two = _static_pair(bench, topic)
    again = bench.member("g", topic, instance_id="one")
    until(lambda: len(again.owned) == 2, again, two)
    with pytest.raises(FencedError):
        until(lambda: False, one, two)
    with pytest.raises(FencedError):
        one.consumer.commit(dict.fromkeys(again.owned, 1))


def test_a_group_is_needed_to_subscribe_and_assign_needs_none(bench: Bench) -> None:
    topic = bench.topic()
    alone = bench.reader(TopicPartition(topic, 0))
    with pytest.raises(InvalidArgumentError):
        alone.subscribe([topic], lambda partitions: None, lambda partitions: None)
    with pytest.raises(InvalidArgumentError):
        alone.commit({TopicPartition(topic, 0): 1})
    member = bench.member("g", topic)
    with pytest.raises(InvalidArgumentError):
        member.consumer.assign({TopicPartition(topic, 0): 0})


def test_who_has_committed_an_offset_is_found_with_it(bench: Bench) -> None:
    """By a transaction, or without; of a log that has brokers to say it."""
    topic = bench.topic(3)
    first, second, never = (TopicPartition(topic, partition) for partition in range(3))
    one = bench.member("g", topic, client_id="one-of-them")
    until(lambda: len(one.owned) == 3, one)
    one.consumer.commit({first: 1, second: 1})
    producer = bench.producer("t")
    producer.begin_transaction()
    producer.send_offsets_to_transaction({second: 2}, one.consumer)
    producer.commit_transaction()
    group, asked = f"g-{bench.id}", [first, second, never]
    said = bench.admin.committed_by(group, asked)
    assert said == ({} if bench.log.embedded_file else {first: "one-of-them", second: "one-of-them"})
    assert bench.admin.committed(group, asked) == {first: 1, second: 2}


def test_notes_are_kept_with_the_offsets_that_they_were_committed_with(bench: Bench) -> None:
    """By a transaction, or without; a commit that names none leaves none, and so do offsets that are altered."""
    topic = bench.topic(3)
    first, second, never = (TopicPartition(topic, partition) for partition in range(3))
    one = bench.member("g", topic, client_id="one-of-them")
    until(lambda: len(one.owned) == 3, one)
    group, asked = f"g-{bench.id}", [first, second, never]
    assert bench.admin.committed_with_notes(group, asked) == {}
    old, new = OffsetNote(1_700_000_000_000), OffsetNote(1_800_000_000_000, "abc,def@7")
    one.consumer.commit({first: 1, second: 1}, {first: OffsetNote(0), second: old})
    assert bench.admin.committed_with_notes(group, asked) == {first: (1, OffsetNote(0)), second: (1, old)}
    producer = bench.producer("t")
    producer.begin_transaction()
    producer.send_offsets_to_transaction({second: 2}, one.consumer, {second: new})
    producer.commit_transaction()
    assert bench.admin.committed_with_notes(group, asked) == {first: (1, OffsetNote(0)), second: (2, new)}
    one.consumer.commit({first: 1}, {first: OffsetNote(None, "")})
    assert bench.admin.committed_with_notes(group, asked) == {first: (1, OffsetNote(None, "")), second: (2, new)}
    assert bench.admin.committed(group, asked) == {first: 1, second: 2}
    said = bench.admin.committed_by(group, asked)
    assert said == ({} if bench.log.embedded_file else {first: "one-of-them", second: "one-of-them"})
    one.consumer.commit({second: 2})
    assert bench.admin.committed_with_notes(group, [second]) == {second: (2, OffsetNote())}
    one.consumer.close()
    bench.admin.alter_offsets(group, {first: 1})
    assert bench.admin.committed_with_notes(group, asked) == {first: (1, OffsetNote()), second: (2, OffsetNote())}
    bench.admin.alter_offsets(group, {first: 3, second: 4}, {second: new})
    assert bench.admin.committed_with_notes(group, asked) == {first: (3, OffsetNote()), second: (4, new)}


def test_the_offsets_of_a_group_are_altered_while_nobody_is_in_it(bench: Bench) -> None:
    topic, group = bench.topic(2), f"g-{bench.id}"
    first, second = (TopicPartition(topic, partition) for partition in range(2))
    bench.admin.alter_offsets(group, {first: 7})
    one = bench.member("g", topic)
    until(lambda: len(one.owned) == 2, one)
    with pytest.raises(RetryLaterError, match="has members"):
        bench.admin.alter_offsets(group, {second: 3})
    one.consumer.close()
    assert bench.admin.committed(group, [first, second]) == {first: 7}
    bench.admin.alter_offsets(group, {second: 3})
    assert bench.admin.committed(group, [first, second]) == {first: 7, second: 3}
    bench.admin.alter_offsets(group, {})
