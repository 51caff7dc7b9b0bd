"""Tables whose rows move between subtopologies, however many changes come in one commit: against plain Python."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.testing import Record, TestDriver
from support.apps import chained_tables_app
from support.apps.chained_tables_app import Given, cities_of, named_of, sold_of, tables_of
from support.run.length import long_or_short

VALUES = {
    "orders": (["o1", "o2", "o3", "o4"], ["c1-a", "c1-b", "c2-a", "c3-a", "x"]),
    "customers": (["c1", "c2", "c3"], ["bath", "york", "ely"]),
    "cities": (["bath", "york", "ely"], ["Bath", "York"]),
}
CHANGES = st.one_of(
    [
        st.tuples(st.just(topic), st.sampled_from(keys), st.none() | st.sampled_from(values))
        for topic, (keys, values) in VALUES.items()
    ]
)


def check(driver: TestDriver, sent: list[Given]) -> None:
    tables = tables_of(sent)
    rows = {name: {row.key: row.value for row in driver.store(name).all()} for name in ("sold", "collected", "named")}
    assert rows["sold"] == sold_of(tables)
    assert {city: orders for city, orders in rows["collected"].items() if orders} == cities_of(tables)
    assert {city: name for city, name in rows["named"].items() if not name.endswith("=0")} == named_of(tables)


@settings(max_examples=long_or_short(100, 10), deadline=None)
@given(st.lists(CHANGES, min_size=5, max_size=40), st.sampled_from([1, 3, 40]))
def test_each_table_is_that_of_its_parents_after_each_commit(
    changes: list[tuple[str, str, str | None]], at_a_time: int
) -> None:
    sent: list[Given] = []
    with TestDriver(chained_tables_app.build(), partitions=2, autocommit=False) as driver:
        for number, (topic, key, value) in enumerate(changes, 1):
            sent.append((topic, (key, value, number)))
            driver.pipe(topic, key, value, timestamp_ms=number)
            if number % at_a_time == 0 or number == len(changes):
                driver.commit()
                check(driver, sent)


@pytest.mark.parametrize("most", [2, 60])
def test_many_changes_of_few_keys_leave_the_same_tables_in_slices_of_any_size(most: int) -> None:
    chance, sent, number = random.Random(most), list[Given](), 0
    with TestDriver(chained_tables_app.build(), partitions=3, autocommit=False) as driver:
        while number < long_or_short(900, 300):
            topic, records = chance.choice([*VALUES, "orders"]), list[Record]()
            keys, values = VALUES[topic]
            for _ in range(chance.randint(1, most)):
                number += 1
                value = None if chance.random() < 0.2 else chance.choice(values)
                records.append(Record(chance.choice(keys), value, timestamp_ms=number))
                sent.append((topic, (str(records[-1].key), value, number)))
            driver.pipe_all(topic, records)
            if chance.random() < 0.3:
                driver.commit()
        driver.commit()
        check(driver, sent)
