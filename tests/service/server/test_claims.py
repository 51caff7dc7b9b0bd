"""Which nodes may say that they own a task: Kafka's group decides."""

from __future__ import annotations

import pytest

from stateline.config.loading import load_config
from stateline.log.interface import GroupMember
from stateline.server.nodes.claims import Claims
from stateline.server.state.group_watch import GroupRequest, GroupState, GroupWatch
from stateline_store import TopicPartition
from stateline_store.clock import boot_ms

SOURCE = TopicPartition("in", 0)


class Scene:
    """A group as Kafka shows it, and three nodes: `n` and `n-1` have names that begin alike."""

    def __init__(self) -> None:
        config = load_config("app", environment={}, overrides=["bootstrap.servers=localhost:1"])
        wanted = GroupRequest((), (), is_urgent=False)
        self.watch = GroupWatch(config, "g", lambda _: False, lambda _: False, lambda: wanted, lambda: None)
        self.directories = {"n": "d0", "n-1": "d1", "two": "d2"}
        self.claims = Claims(self.watch, lambda _: {SOURCE}, lambda: self.directories)
        self.assigned = 0
        self.watch.on_assigned = self._note

    def _note(self) -> None:
        self.assigned += 1
        self.claims.forget()

    def shows(self, *members: GroupMember, at_ms: int | None = None) -> None:
        self.watch.take(GroupState(boot_ms() if at_ms is None else at_ms, members, {}))

    def owners(self, since_ms: int = 0) -> set[str]:
        return {node for node in (*self.directories, "rogue") if self.claims.counts("0_0", node, since_ms)}

    def kafka_is_silent(self) -> None:
        self.watch.unanswered_since_ms = boot_ms() - 10_000


def member(instance: str | None, client: str = "c", *, has: bool = True) -> GroupMember:
    return GroupMember(f"{instance}/{client}", client, instance, frozenset({SOURCE} if has else ()))


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        (member("two-0"), "two"),
        (member(None, "app-d2-0"), "two"),
        (member("n-1-0", "app-d1-0"), "n-1"),
        (member("n-1-0", "app-d0-0"), "n"),
        (member("n-0", "app-d2-0"), "n"),
    ],
)
def test_a_member_is_the_node_s_that_its_static_id_or_its_directory_names(given: GroupMember, owner: str) -> None:
    scene = Scene()
    scene.shows(given, member("two-9", has=False))
    assert scene.owners() == {owner}


@pytest.mark.parametrize("given", [member(None), member("n-1-0"), member("nobody-0"), member(None, "app-d9-0")])
def test_a_member_that_fits_no_node_or_two_of_them_makes_nobody_an_owner(given: GroupMember) -> None:
    scene = Scene()
    scene.shows(given)
    assert scene.owners() == set()
    assert not scene.claims.may_answer("0_0", "two")


def test_two_nodes_that_say_they_have_one_directory_are_told_apart_by_static_ids_alone() -> None:
    scene = Scene()
    scene.directories["rogue"] = "d2"
    scene.shows(member(None, "app-d2-0"))
    assert scene.owners() == set()
    scene.shows(member("two-0", "app-d2-0"))
    assert scene.owners() == {"two"}


def test_a_group_that_decides_again_shows_nobody_and_the_former_owner_counts() -> None:
    scene = Scene()
    scene.shows(member("two-0"))
    scene.shows(member("two-0", has=False), member("n-0", has=False))
    assert scene.owners() == {"two"}


def test_while_kafka_is_silent_a_claim_counts_about_which_it_has_said_nothing() -> None:
    scene = Scene()
    scene.shows(member("two-0"), at_ms=boot_ms() - 60_000)
    assert scene.owners(since_ms=boot_ms()) == {"two"}
    scene.kafka_is_silent()
    assert scene.owners(since_ms=boot_ms() - 120_000) == {"two"}, "Kafka has answered since it was made"
    assert scene.owners(since_ms=boot_ms()) == {*scene.directories, "rogue"}


def test_when_kafka_answers_again_claims_are_looked_at_again_also_where_the_group_is_as_before() -> None:
    scene = Scene()
    scene.shows(member("two-0"), at_ms=boot_ms() - 60_000)
    assert scene.assigned == 1
    scene.shows(member("two-0"))
    assert scene.assigned == 1
    scene.kafka_is_silent()
    scene.shows(member("two-0", has=False))
    assert scene.assigned == 1, "the group decides"
    scene.shows(member("two-0"))
    assert scene.assigned == 2


def test_a_copy_of_another_node_may_be_the_newest_where_the_group_has_given_the_task_to_nobody_else() -> None:
    scene = Scene()
    assert not scene.claims.may_answer("0_0", "n"), "Kafka has said nothing yet"
    scene.shows(member("two-0"))
    assert scene.claims.may_answer("0_0", "two")
    assert not scene.claims.may_answer("0_0", "n")
    scene.shows()
    assert scene.claims.may_answer("0_0", "n")
    assert [scene.claims.has_worker(node) for node in ("two", "n")] == [False, False]
