"""The serdes whose bytes are no JSON text, though their values are shown as JSON: Spark parses none of them."""

from __future__ import annotations

from stateline.serde.avro import AvroSerde
from stateline.serde.json_schema import JsonSchemaSerde
from stateline.serde.packed import MsgpackSerde
from stateline.serde.protobuf import ProtobufSerde

SHOWN_AS_JSON = (AvroSerde, ProtobufSerde, JsonSchemaSerde, MsgpackSerde)
