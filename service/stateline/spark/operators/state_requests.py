"""Reads and writes many entries of a `MapState` in one round trip to Spark's state server. PySpark takes one each.

No version of Spark promises the messages. So importing this raises `ConfigurationError` with another one than 4.2.

The server answers requests in order, so requests may be sent ahead. They must fit into the socket's buffers. Otherwise
both sides could wait for each other.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import MapState

from stateline_store import ConfigurationError

if not pyspark.__version__.startswith("4.2."):
    raise ConfigurationError(
        f"PySpark {pyspark.__version__} is installed, and operators with state need 4.2: run `pip install "
        "'stateline[spark]'`. Stores can be read with both."
    )

_AHEAD_BYTES = 32 * 1024  # of requests: the smallest socket buffer of Linux holds more
_AHEAD = 100  # requests: even a short answer takes kernel memory
_FRAME = struct.Struct(">ii")  # the version of the messages, which is 0, and the length
_LENGTH = struct.Struct(">i")

Entry = tuple[Any, ...]
"""A row of the state: numbers, texts and lists of them, which need no conversion."""


def entries(state: MapState, keys: Sequence[Entry]) -> list[Entry | None]:
    """Return the values of these keys in this order, None for absent ones."""
    if type(state) is not MapState:  # PySpark's for tests has no server
        return [state.getValue(key) for key in keys]
    requests = (_request(state._stateName, "getValue", key) for key in keys)
    # An empty answer means that the key is absent.
    return [tuple(_Rows(BytesIO(each.value)).load()) if each.value else None for each in _answers(state, requests)]


def change(state: MapState, changes: Mapping[Entry, Entry | None]) -> None:
    """Set the values of these keys. None removes a key."""
    if type(state) is not MapState:  # PySpark's for tests has no server
        for key, value in changes.items():
            state.removeKey(key) if value is None else state.updateValue(key, value)
        return
    requests = (
        _request(state._stateName, "removeKey" if value is None else "updateValue", key, value)
        for key, value in changes.items()
    )
    for _ in _answers(state, requests):
        pass


def _request(name: str, kind: str, key: Entry, value: Entry | None = None) -> messages.StateRequest:
    request = messages.StateRequest()
    request.stateVariableRequest.mapStateCall.stateName = name
    call = getattr(request.stateVariableRequest.mapStateCall, kind)
    call.userKey = _packed(key)
    if value is not None:
        call.value = _packed(value)
    return request


def _packed(row: Entry) -> bytes:
    return pickle.dumps(row, protocol=4)  # like PySpark's own pickle, which also looks for functions


class _Rows(pickle.Unpickler):
    """Reads rows as tuples. Spark adds the schema to each as JSON, which takes longer to read than the row."""

    def find_class(self, module: str, name: str) -> Any:
        return _OF_SCHEMAS[name] if name in _OF_SCHEMAS else super().find_class(module, name)


# Replacements for two functions of `pyspark.sql.types`: one parses a schema, one makes a row from schema and values.
_OF_SCHEMAS: dict[str, Callable[..., Any]] = {
    "_parse_datatype_json_string": lambda text: None,
    "_create_row_inbound_converter": lambda _: lambda *values: values,
}


def _answers(state: MapState, requests: Iterable[messages.StateRequest]) -> Iterator[messages.StateResponse]:
    file = state._mapStateClient._stateful_processor_api_client.sockfile
    for portion in _portions(requests):
        file.write(b"".join(portion))
        file.flush()
        for _ in portion:
            answer = messages.StateResponse.FromString(file.read(_LENGTH.unpack(file.read(4))[0]))
            if answer.statusCode:
                raise PySparkRuntimeError(f"The state {state._stateName} failed: {answer.errorMessage}")
            yield answer


def _portions(requests: Iterable[messages.StateRequest]) -> Iterator[list[bytes]]:
    """Yield as many requests as may be sent ahead. A larger one goes alone."""
    portion: list[bytes] = []
    size = 0
    for request in requests:
        data = request.SerializeToString()
        if portion and (size + len(data) > _AHEAD_BYTES or len(portion) == _AHEAD):
            yield portion
            portion, size = [], 0
        portion.append(_FRAME.pack(0, len(data)) + data)
        size += len(data)
    if portion:
        yield portion
