"""docs/serdes.md is true: its applications run, its tables name all that there is."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from stateline import App, serdes
from stateline.serde.plain import Serde, type_name
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError
from test_docs import blocks, document, rows

TEXT = document("docs/serdes.md")
REGISTRY, MODELS, OWN, TEST = blocks(TEXT, "python")


def run(*code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "page"}
    for block in code:
        exec(block, scope)
    return scope


def test_the_test_that_it_shows_passes_with_the_application_that_it_shows() -> None:
    run(REGISTRY, TEST)["test_the_largest_order_is_kept"]()


def test_a_model_is_what_functions_get_and_the_message_names_the_field() -> None:
    scope = run(MODELS)
    with TestDriver(scope["app"]) as driver:
        driver.pipe("orders", "ann", scope["Order"](city="Bern", amount=3))
        assert driver.store("orders").get("ann").note == ""
    with pytest.raises(InvalidArgumentError, match="amount: Input should be a valid integer"):
        serdes.model(scope["Order"]).check(b'{"city": "Bern", "amount": "x"}')


def test_the_serde_of_its_own_reads_what_it_writes_and_shows_it_over_http() -> None:
    scope = run(OWN)
    money: Serde = scope["Money"]()
    assert type_name(money) == "Money (money(2))"
    with TestDriver(scope["app"]) as driver:
        driver.pipe("balances", "ann", Decimal("10.5"))
        assert driver.store("balances").get("ann") == Decimal("10.50")
        assert driver.client.get("/v1/stores/balances/keys/ann").json()["value"] == "10.50"
    assert money.from_json("10.5") == money.serialize(Decimal("10.50"))
    for wrong in ("ten", "1.005", "NaN"):
        with pytest.raises(InvalidArgumentError):
            money.parse_text(wrong)


def test_its_tables_have_each_serde_and_each_method_of_one() -> None:
    shown = " ".join(row[0] for row in rows(TEXT, "# Serdes"))
    named = set(re.findall(r"`(?:serdes\.)?(\w+)", shown))
    around = {"windowed", "session_windowed", "time_windowed", "Serde", "WindowedSerde", "TimeWindowedSerde"}
    around |= {"held_back", "subscriber", "subscription", "unmatched_key", "unmatched_values"}
    assert named == set(serdes.__all__) - around
    methods = set(re.findall(r"`(\w+)", " ".join(row[0] for row in rows(TEXT, "## Serdes of your own"))))
    assert methods == {name for name in vars(Serde) if not name.startswith("_")}


def test_the_applications_declare_what_they_show() -> None:
    assert isinstance(run(REGISTRY)["app"], App)
