"""`topology.auto.repartition`: rows with a changed key go through a topic before a step that needs it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateline import App, JoinWindows, SessionWindows, TumblingWindows, serdes
from stateline.config.settings import Config
from stateline.dsl.streams import Stream
from stateline.testing import TestDriver
from stateline_store import ConfigurationError, TopologyError

MINUTE = timedelta(minutes=1)
WITHIN = JoinWindows(MINUTE)
Step = Callable[[App, Stream], Any]


def declared(*, auto: object = True) -> tuple[App, Stream]:
    app = App("auto", config={} if auto is None else {"topology.auto.repartition": auto})
    return app, app.stream("in", key=serdes.string, value=serdes.string).select_key(lambda key, value: value[:1])


def pair(one: str, other: str | None) -> str:
    return f"{one}+{other}"


def other(app: App) -> Stream:
    return app.stream("other", key=serdes.string, value=serdes.string)


def prices(app: App) -> Any:
    return app.table("prices", key=serdes.string, value=serdes.string)


STEPS: dict[str, tuple[Step, set[str]]] = {
    "count": (lambda app, rows: rows.group_by_key().count("st"), {"st"}),
    "reduce": (lambda app, rows: rows.group_by_key().reduce(pair, "st"), {"st"}),
    "windows": (lambda app, rows: rows.group_by_key().windowed_by(TumblingWindows(MINUTE)).count("st"), {"st"}),
    "sessions": (lambda app, rows: rows.group_by_key().windowed_by(SessionWindows(MINUTE)).count("st"), {"st"}),
    "generated": (lambda app, rows: rows.group_by_key().count(), {"KSTREAM-AGGREGATE-STATE-STORE-0000000000"}),
    "to_table": (lambda app, rows: rows.to_table("st"), {"st"}),
    "left of a join": (lambda app, rows: rows.join(other(app), pair, within=WITHIN, store="j").to("o"), {"j-left"}),
    "right of a join": (lambda app, rows: other(app).join(rows, pair, within=WITHIN, store="j").to("o"), {"j-right"}),
    "self-join": (lambda app, rows: rows.join(rows, pair, within=WITHIN, store="j").to("o"), {"j-left", "j-right"}),
    "table": (lambda app, rows: rows.join(prices(app), pair).to("o"), {"prices-join"}),
    "left table": (lambda app, rows: rows.filter(pair).left_join(prices(app), pair).to("o"), {"prices-left-join"}),
    "moved already": (lambda app, rows: rows.repartition("own").group_by_key().count("st"), {"own"}),
}


@pytest.mark.parametrize("value", [1, "on", " true"])
def test_the_setting_takes_what_switches_take(value: object) -> None:
    app, rows = declared(auto=value)
    rows.group_by_key().count("st")
    assert any(topic.internal for part in app.topology().subtopologies for topic in part.sources)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_needs_it_reads_a_topic_of_its_name(step: str) -> None:
    app, rows = declared()
    declare, names = STEPS[step]
    declare(app, rows)
    read = {topic.name for part in app.topology().subtopologies for topic in part.sources if topic.internal}
    assert read == {f"auto-{name}-repartition" for name in names}


def test_rows_of_a_key_meet_in_one_partition() -> None:
    app, rows = declared(auto="true")
    rows.group_by_key().count("counts")
    rows.join(prices(app), pair).to("priced")
    with TestDriver(app, partitions=4) as driver:
        driver.pipe("prices", "a", "9")
        for number in range(8):
            driver.pipe("in", f"k{number}", f"a{number}")
        assert driver.store("counts").get("a") == 8
        assert sorted(row.value for row in driver.read("priced")) == [f"a{number}+9" for number in range(8)]


def test_joins_of_a_stream_with_one_table_share_a_topic() -> None:
    app, rows = declared()
    table = prices(app)
    rows.join(table, pair).to("one")
    rows.join(table, lambda row, price: f"{row}*{price}").to("two")
    with TestDriver(app, partitions=2) as driver:
        driver.pipe("prices", "a", "9")
        driver.pipe("in", "k", "ab")
        assert [row.value for topic in ("one", "two") for row in driver.read(topic)] == ["ab+9", "ab*9"]
        assert len(driver.read("auto-prices-join-repartition")) == 1


def test_a_join_of_another_stream_with_the_table_says_how_to_name_its_topic() -> None:
    app, rows = declared()
    table, others = prices(app), other(app).select_key(lambda key, value: value)
    rows.join(table, pair).to("one")
    with pytest.raises(TopologyError, match=r'another name, with \.repartition\("a-name"\) before the step'):
        others.join(table, pair)
    others.repartition("others").join(table, pair).to("two")


@pytest.mark.parametrize("auto", [None, False, "off", 0])
def test_without_it_the_advice_names_repartition(auto: object) -> None:
    _, rows = declared(auto=auto)
    with pytest.raises(TopologyError, match=r"the key was changed.*call .repartition"):
        rows.group_by_key()


def test_what_has_no_name_for_its_topic_is_refused() -> None:
    app, rows = declared()
    with pytest.raises(TopologyError, match="give store=…"):
        rows.join(other(app), pair, within=WITHIN)
    grouped = other(app).group_by_key()
    with pytest.raises(TopologyError, match="Before cogroup the key was changed"):
        rows.group_by_key().cogroup(lambda key, value, made: made)
    with pytest.raises(TopologyError, match="Before cogroup the key was changed"):
        grouped.cogroup(lambda key, value, made: made).cogroup(rows.group_by_key(), lambda key, value, made: made)


def test_a_value_that_comes_after_the_declarations_is_refused() -> None:
    app, _ = declared(auto=None)
    with pytest.raises(ConfigurationError, match=r"topology.auto.repartition=true comes too late"):
        app.configure(Config(topology_auto_repartition=True, application_id="auto"))
