"""Stores of Java's joins and of its `suppress`, served over HTTP from the changelogs that Kafka Streams wrote."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from conformance.golden import section, unhex
from stateline import App, serdes, stores
from stateline.model.store_definition import StoreDefinition
from stateline.testing import TestDriver

TEXT = serdes.string
OPERATORS = {history["name"]: history["left"] for history in section("operators")}
STORES: dict[str, StoreDefinition] = {
    "suppress_time_limit": stores.key_value("s-store", key=TEXT, value=serdes.held_back(TEXT)),
    "stream_outer": stores.key_value(
        "j-outer-shared-join-store", key=serdes.unmatched_key(TEXT), value=serdes.unmatched_values(TEXT, TEXT)
    ),
    "fk_left": stores.timestamped_key_value(
        "fk-subscription-store", key=serdes.subscriber(TEXT, TEXT), value=serdes.subscription(TEXT)
    ),
}
LAST: dict[str, tuple[Any, Any]] = {
    "suppress_time_limit": (
        "k1",
        {"prior": "k2:273", "old": "k2:273", "new": "k3:298", "time_ms": 8471, "offset": 161},
    ),
    "stream_outer": ([8471, "left", "k1"], ["k3:298"]),
    "fk_left": (["k2", "k3"], {"primary_key": "k3", "instruction": 2, "partition": 0}),
}


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_java_with_several_parts_is_served(name: str) -> None:
    definition, rows = STORES[name], dict[bytes, bytes]()
    app = App("http")
    app.external_store(definition, of="app")
    with TestDriver(app) as driver:
        for left in OPERATORS[name].values():
            for topic, key, value, at_ms, headers in left:
                if topic != f"app-{definition.name}-changelog":
                    continue
                pairs = tuple((header, unhex(content)) for header, content in headers)
                driver.pipe_bytes(topic, unhex(key), unhex(value), timestamp_ms=at_ms, headers=pairs)
                rows.pop(unhex(key) or b"", None)
                if value is not None:
                    rows[unhex(key) or b""] = unhex(value) or b""
        entries = driver.client.get(f"/v1/stores/{definition.name}/range").json()["entries"]
        assert [(each["key"], each["value"]) for each in entries] == [
            (definition.key.key_to_json(key), definition.value.to_json(rows[key])) for key in sorted(rows)
        ]
        key, parts = LAST[name]
        text = quote(key if isinstance(key, str) else json.dumps(key), safe="")
        value = driver.client.get(f"/v1/stores/{definition.name}/keys/{text}").json()["value"]
        assert value == (parts if isinstance(parts, list) else {**value, **parts})
