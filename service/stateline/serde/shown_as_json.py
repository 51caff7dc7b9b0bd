"""The serdes that Spark cannot parse: their values are shown as JSON, but their bytes are not JSON text."""

from __future__ import annotations

from stateline.serde.avro import AvroSerde
from stateline.serde.json_schema import JsonSchemaSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.protobuf import ProtobufSerde

SHOWN_AS_JSON = (AvroSerde, ProtobufSerde, JsonSchemaSerde, MsgpackSerde)
