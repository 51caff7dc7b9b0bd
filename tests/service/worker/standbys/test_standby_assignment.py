"""Which tasks a worker follows, for groups that are at rest or about to have one more member."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stateline.model.standby_placement import Placeable, range_owner
from stateline.worker.standbys.standby_assignment import GroupView, to_follow
from stateline_store.task_id import TaskId

PARTITIONS = 12
TASKS = [TaskId(0, partition) for partition in range(PARTITIONS)]


def members(*names: str) -> tuple[Placeable, ...]:
    return tuple(Placeable(name, name.partition("-")[0]) for name in names)


def view(*there: Placeable) -> GroupView:
    owners = {task: owner for task in TASKS if (owner := range_owner(there, PARTITIONS, task.partition)) is not None}
    return GroupView(dict.fromkeys(TASKS, PARTITIONS), there, owners)


def followed(seen: GroupView, own: Placeable, kept: set[TaskId] | None = None) -> set[TaskId]:
    return to_follow(seen, own, seen.holders(1, ()), kept or set())


def caught_up(seen: GroupView, **tasks: set[TaskId]) -> GroupView:
    return replace(seen, caught_up={node: frozenset(map(str, some)) for node, some in tasks.items()})


def test_each_task_is_followed_once_and_never_where_it_is_owned() -> None:
    there = members("a", "b", "c")
    seen = view(*there)
    by_node = {each.node: followed(seen, each) for each in there}
    assert sorted(task for some in by_node.values() for task in some) == TASKS
    for each in there:
        assert not any(seen.has(each.node, task) for task in by_node[each.node])


def test_what_is_to_be_followed_elsewhere_is_kept_until_all_who_are_to_have_caught_up() -> None:
    _, b, c = there = members("a", "b", "c")
    seen = view(*there)
    at_b = followed(seen, b)
    assert at_b
    others = {task for task in TASKS if not seen.has("c", task)} - followed(seen, c)
    at_c = others & at_b
    assert at_c, "they have stood at c until now, and are to stand at b"
    assert followed(seen, c, at_c) >= at_c
    some, *rest = sorted(at_c)
    half = caught_up(seen, b={some}, a=set())
    assert followed(half, c, at_c) >= {*rest}
    assert some not in followed(half, c, at_c)
    assert at_c.isdisjoint(followed(caught_up(seen, b=at_c), c, at_c))
    assert at_c.isdisjoint(followed(seen, c)), "nothing is begun with because of that"


@pytest.mark.parametrize("name", ["0", "ab", "z"])
def test_all_that_moves_when_a_member_comes_is_followed_before_by_who_will_have_it(name: str) -> None:
    there, (comes,) = members("a", "b", "c", "d", "e"), members(name)
    seen = replace(view(*there), candidates=(comes,))
    after = view(*there, comes)
    for each in (*there, comes):
        gets = {task for task in TASKS if after.has(each.node, task) and not seen.has(each.node, task)}
        assert followed(seen, each) >= gets
    assert any(after.has(name, task) for task in TASKS)


def test_who_is_in_the_group_already_moves_nothing_when_it_says_that_it_comes() -> None:
    there = members("a", "b")
    assert replace(view(*there), candidates=there[1:]).moves() == {}
