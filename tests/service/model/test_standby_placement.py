"""Where standbys stand, against the range assignor in plain Python."""

from __future__ import annotations

import itertools

import pytest

from stateline.model.standby_placement import Placeable, range_owner, standbys
from support.run.length import long_or_short


def given_by_range(names: list[str], partitions: int) -> dict[int, str]:
    """`RangeAssignor.assign`: member after member takes its run of partitions."""
    found: dict[int, str] = {}
    first = 0
    for place, name in enumerate(sorted(names)):
        count = partitions // len(names) + (place < partitions % len(names))
        found |= dict.fromkeys(range(first, first + count), name)
        first += count
    return found


def members(nodes: int, workers: int) -> list[Placeable]:
    names = [f"n{node:02}" for node in range(nodes)]
    return [Placeable(f"{name}-worker-{worker}", name) for name in names for worker in range(workers)]


PARTITIONS = long_or_short(range(1, 129), [1, 2, 3, 5, 7, 8, 12, 13, 30, 64, 100, 128])
NODES = long_or_short(range(2, 13), [2, 3, 4, 5, 8, 12])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_loss_of_one_node_leaves_each_of_its_tasks_with_a_member_that_has_a_standby(workers: int) -> None:
    for partitions, nodes in itertools.product(PARTITIONS, NODES):
        there = members(nodes, workers)
        by_name = {each.name: each for each in there}
        owners = {p: by_name[name] for p, name in given_by_range(list(by_name), partitions).items()}
        for p, owner in owners.items():
            assert range_owner(there, partitions, p) == owner
            left = [each.name for each in there if each.node != owner.node]
            (standby,) = standbys(f"0_{p}", owner, there, partitions, p, 1)
            assert standby.name == given_by_range(left, partitions)[p]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_what_a_loss_moves_between_nodes_that_are_left_is_followed_there_too(workers: int) -> None:
    for partitions, nodes in itertools.product(PARTITIONS, NODES):
        there = members(nodes, workers)
        by_name = {each.name: each for each in there}
        owners = {p: by_name[name] for p, name in given_by_range(list(by_name), partitions).items()}
        has = {
            p: {owner.node, *(each.node for each in standbys(f"0_{p}", owner, there, partitions, p, 1))}
            for p, owner in owners.items()
        }
        for lost in sorted({each.node for each in there}):
            after = given_by_range([each.name for each in there if each.node != lost], partitions)
            assert all(by_name[name].node in has[p] for p, name in after.items()), (partitions, nodes, lost)


def test_no_node_has_a_task_twice_and_there_are_no_more_standbys_than_other_nodes() -> None:
    there = members(4, 2)
    for replicas, p in itertools.product(range(6), range(16)):
        owner = range_owner(there, 16, p)
        assert owner is not None
        found = standbys(f"0_{p}", owner, there, 16, p, replicas)
        assert len(found) == min(replicas, 3)
        assert len({each.node for each in [owner, *found]}) == len(found) + 1


def test_further_standbys_stand_in_other_racks_where_there_are_some() -> None:
    zones = {"n00": "a", "n01": "a", "n02": "b", "n03": "b", "n04": "c"}
    there = [Placeable(f"{node}-worker-0", node, {"zone": zone}) for node, zone in zones.items()]
    for p in range(30):
        owner = range_owner(there, 30, p)
        assert owner is not None
        found = standbys(f"0_{p}", owner, there, 30, p, 2, ["zone"])
        first_two = {owner.tags["zone"], found[0].tags["zone"]}
        assert found[1].tags["zone"] not in first_two


def test_a_node_that_comes_or_goes_moves_only_the_further_standbys_that_are_its_own() -> None:
    there = members(6, 1)
    tasks = [f"0_{p}" for p in range(200)]

    def second(members: list[Placeable], task: str, owner: Placeable, first: Placeable) -> Placeable:
        # One partition of one: range gives it to the first member by name, whoever else is there.
        return standbys(task, owner, [owner, first, *members], 1, 0, 2)[1]

    owner, first, others = there[0], there[1], there[2:]
    before = {task: second(others, task, owner, first) for task in tasks}
    after = {task: second(others[:-1], task, owner, first) for task in tasks}
    moved = [task for task in tasks if before[task] != after[task]]
    assert moved == [task for task in tasks if before[task] == others[-1]]
    assert 20 < len(moved) < 80


def test_there_is_no_standby_without_another_node() -> None:
    there = members(1, 4)
    assert standbys("0_0", there[0], there, 4, 0, 2) == []
    assert range_owner([], 4, 0) is None


@pytest.mark.parametrize(("nodes", "first", "amid"), [(2, 60, 40), (3, 60, 40), (5, 60, 36), (9, 51, 34)])
def test_a_name_amid_the_others_moves_fewer_of_120_tasks_than_one_that_comes_first(
    nodes: int, first: int, amid: int
) -> None:
    names = [f"n{node}" for node in range(nodes)]
    before = given_by_range(names, 120)
    for name, moved in (("m", first), (f"n{nodes // 2}", amid)):
        # A name between two others: they are renamed around it, in their order.
        named = {n: n if n < name else f"{n}+" for n in names}
        after = given_by_range([*named.values(), name], 120)
        assert sum(after[p] != named[before[p]] for p in range(120)) == moved
