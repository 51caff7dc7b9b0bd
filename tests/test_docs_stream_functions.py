"""docs/stream-functions.md is true: the applications at its end do what the page says."""

from __future__ import annotations

import ast
import re
from typing import Any

from stateline import App
from stateline.testing import TestDriver
from test_docs import blocks, document

TEXT = document("docs/stream-functions.md")


def declared(place: int) -> App:
    scope: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[place], scope)
    app = scope["app"]
    assert isinstance(app, App)
    return app


def test_several_topics_are_one_stream() -> None:
    with TestDriver(declared(-3), partitions=2) as driver:
        for topic in ("orders-de", "orders-fr"):
            driver.pipe(topic, "ada", {"amount": 1})
        assert driver.store("orders_of").get("ada") == 2


def test_all_topics_that_match_a_pattern_are_one_stream() -> None:
    (partitions,) = re.findall(r"TestDriver\(app, partitions=({.*?})\)", TEXT)
    with TestDriver(declared(-2), partitions=ast.literal_eval(partitions)) as driver:
        for topic in ("orders-de", "orders-fr"):
            driver.pipe(topic, "ada", {"amount": 1})
        assert driver.store("orders_of").get("ada") == 2


def test_rows_with_a_changed_key_go_through_the_topic_that_it_names() -> None:
    app = declared(-1)
    with TestDriver(app, partitions=3) as driver:
        for customer in ("ada", "bob", "cy"):
            driver.pipe("orders", customer, {"town": "Bath"})
        assert driver.store("orders_of_town").get("Bath") == 3
    (topic,) = (each.name for part in app.topology().subtopologies for each in part.sources if each.internal)
    assert f"`{topic}`" in TEXT
