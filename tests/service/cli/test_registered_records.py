"""`stateline produce` and `consume` write and show values of a Schema Registry, UUIDs and times."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from stateline import App, serdes
from stateline.cli.records.consume import consume, wanted_of
from stateline.cli.records.produce import ProduceOptions
from stateline.cli.records.produce import produce as produce_records
from stateline.config.loading import load_config
from stateline.deployment.configured_log import configured_log
from stateline.log import NewTopic
from stateline_store import InvalidArgumentError

_AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_SALE = {"type": "record", "name": "Sale", "namespace": "shop", "fields": [{"name": "amount", "type": "long"}, _AT]}


def test_what_is_written_as_json_is_avro_in_the_topic_and_shown_as_the_same_json(tmp_path: Path) -> None:
    app = App("lines", config={"schema.registry.url": f"mock://{tmp_path.name}"})
    app.table(app.topic("sales", key=serdes.uuid, value=serdes.avro(_SALE)))
    config = load_config("lines", environment={}, overrides=[f"state.dir={tmp_path}"])
    with closing(configured_log(config)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("sales", 1)])
    key, value = "0198c0de-0000-7000-8000-0000000000ab", '{"amount":3,"at":"2026-05-01T12:00:00Z"}'
    assert (
        produce_records(app, config, "sales", (), ProduceOptions(), [f"{key}\t{value}"]).position == '{"sales":{"0":0}}'
    )
    with pytest.raises(InvalidArgumentError, match=r"value \(avro\(shop\.Sale\)\): 'amont' is no field of shop\.Sale"):
        produce_records(app, config, "sales", (), ProduceOptions(), [f'{key}\t{{"amont":3}}'])
    out = io.StringIO()
    how = wanted_of("earliest", None, (), most=None, isolation_level="read_committed", format_="jsonl", follow=False)
    assert consume(app, config, ["sales"], how, out) == 1
    shown = orjson.loads(out.getvalue())
    assert (shown["key"], shown["value"]) == (key, orjson.loads(value))
