"""The OpenAPI document of the routes, from the declarations that the parser and the problem table use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from stateline.model.store_definition import StoreDefinition
from stateline.problem_kinds import PROBLEMS, ProblemKind
from stateline.query.kinds import BY_WORD, INTEGER, KINDS, POSITION_SCHEMA, STRING
from stateline.serde.registered import json_of_text
from stateline.server.contract.parameters import PARAMETERS
from stateline.server.contract.problems import MEDIA_TYPE
from stateline_store.layout import STORE_KINDS

_FAILURES = {"type": "object", "additionalProperties": {"type": "object"}}

# What every query's answer carries beside its result.
_ENVELOPE: dict[str, Any] = {
    "store": STRING,
    "isolation_level": PARAMETERS["isolation_level"].schema,
    "position": POSITION_SCHEMA,
    "partitions": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Partition"}},
    "failures": _FAILURES,
    "stopped": {
        "type": "string",
        "description": "Why no worker runs the store any more. Absent while a worker may run it.",
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route of the document. `result` is the word of a query; None is no query."""

    path: str
    method: str
    summary: str
    parameters: tuple[str, ...] = ()
    result: str | None = None
    problems: tuple[int, ...] = (500,)
    body: Mapping[str, tuple[str, ...]] | None = None
    media_type: str = "application/json"
    streams: tuple[str, ...] = ()
    members: Mapping[str, bool] | None = None  # of a body that is no query: parameter → whether it is required
    answer: Mapping[str, Any] | None = None  # the schema of an answer that no query gives
    success: int = 200
    other_success: int | None = None  # with the same answer


def document(title: str, operations: tuple[Operation, ...], largest: Mapping[str, int]) -> dict[str, Any]:
    """Return the whole OpenAPI document. `largest` are parameters whose maximum is a setting."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _limited(_operation(operation), largest)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Stateline: {title}", "version": version("stateline")},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _limited(part: Any, largest: Mapping[str, int], name: str = "") -> Any:
    """Return this part of the document with a `maximum` in the integers of these parameters."""
    if isinstance(part, list):
        return [_limited(each, largest, name) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "integer" and name in largest:
        return part | {"maximum": largest[name]}
    inside = str(part["name"]) if part.get("in") == "query" else name
    members = part.get("properties", {})
    limited = {key: _limited(value, largest, inside) for key, value in part.items() if key != "properties"}
    if members:
        limited["properties"] = {key: _limited(value, largest, key) for key, value in members.items()}
    return limited


def _operation(operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    described: dict[str, Any] = {
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_') or 'index'}",
        "summary": operation.summary,
        "parameters": [_path_parameter(name) for name in names]
        + [_query_parameter(name) for name in operation.parameters],
        "responses": _responses(operation),
    }
    if HTTPStatus.UNAUTHORIZED in operation.problems:
        described["security"] = [{"token": []}]
    if operation.members is not None:
        described["requestBody"] = {"required": True, "content": _json(_members(operation.members))}
    if operation.body is not None:
        bodies = [_body(kind, names) for kind, names in operation.body.items()]
        described["requestBody"] = {"required": True, "content": _json({"oneOf": bodies})}
    return described


def _path_parameter(name: str) -> dict[str, Any]:
    about = "The key, percent-encoded." if name == "key" else f"The name of the {name}."
    return {"name": name, "in": "path", "required": True, "schema": STRING, "description": about}


def _query_parameter(name: str) -> dict[str, Any]:
    schema, description = PARAMETERS[name]
    name = name.rpartition(".")[2]  # `changes.from` is the `from` of change feeds
    described: dict[str, Any] = {"name": name, "in": "query", "required": False, "description": description}
    if schema.get("type") == "object":
        return described | {"content": _json(dict(schema))}
    return described | {"schema": STRING if "type" not in schema else dict(schema)}


def _body(kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """A null member counts as left out, unless it is required."""
    required = BY_WORD[kind].required
    properties: dict[str, Any] = {"type": {"const": kind}}
    for name in names:
        schema = dict(PARAMETERS[name].schema)
        if name == "partition":
            schema = {"anyOf": [schema["items"], schema]}
        properties[name] = schema if name in required else {"anyOf": [schema, {"type": "null"}]}
    body = {"type": "object", "properties": properties, "additionalProperties": False}
    if BY_WORD[kind].is_scan and not BY_WORD[kind].of_store:  # of a key, unless a cursor says which
        properties["key"] = dict(PARAMETERS["key"].schema)
        properties["cursor"] = dict(PARAMETERS["cursor"].schema)
        body["anyOf"] = [{"required": ["key"]}, {"required": ["cursor"]}]
    return body | {"required": ["type", *sorted(required)]}


def _members(members: Mapping[str, bool]) -> dict[str, Any]:
    properties = {name.rpartition(".")[2]: dict(PARAMETERS[name].schema) for name in members}
    required = [name for name, is_required in members.items() if is_required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _responses(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = dict(operation.answer or {"type": "object"})
    if operation.result is not None:
        success = {"$ref": f"#/components/schemas/{operation.result.capitalize()}Answer"}
    elif operation.body is not None:
        success = {"anyOf": [{"$ref": f"#/components/schemas/{r.capitalize()}Answer"} for r in operation.body]}
    ok = {operation.media_type: {"schema": success if operation.media_type == "application/json" else STRING}}
    ok |= {media_type: {"schema": STRING} for media_type in operation.streams}
    content = {} if operation.success == HTTPStatus.NO_CONTENT else {"content": ok}
    responses: dict[str, Any] = {str(operation.success): {"description": "The answer.", **content}}
    if operation.other_success is not None:
        responses[str(operation.other_success)] = responses[str(operation.success)]
    for status in operation.problems:
        responses[str(status)] = {
            "description": _reasons(status),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    if operation.result == "key" or operation.body is not None:
        responses["404"]["description"] += " Or the key is absent: the ordinary answer, with found false."
        responses["404"]["content"] |= _json({"$ref": "#/components/schemas/KeyAnswer"})
    return responses


def _reasons(status: int) -> str:
    lines = [p for p in PROBLEMS.values() if p.status == status]
    return " ".join(f"{p.reason}: {p.when}" for p in lines) or HTTPStatus(status).phrase


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {
        # What `columns` and `details` may leave out is not required.
        f"{kind.word.capitalize()}Answer": object_schema(
            {**kind.result, **_ENVELOPE}, (*kind.result, "position", "partitions", "failures", "stopped")
        )
        for kind in KINDS
    }
    offsets = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    schemas["Position"] = {
        "type": "object",
        "additionalProperties": offsets,
        "description": "Topic → partition → offset of the input that the answer includes.",
    }
    schemas["Partition"] = object_schema(
        {
            "position": POSITION_SCHEMA,
            "served_by": {"enum": ["active", "standby", "restoring"]},
            "staged_records": INTEGER,
            "staged_bytes": INTEGER,
            "committed_at_ms": INTEGER,
            "lag_ms": {"type": ["integer", "null"]},
            "lag_records": {"type": ["integer", "null"]},
        },
        optional=("lag_ms", "lag_records"),
    )
    schemas["Problem"] = _problem_schema(tuple(PROBLEMS.values()))
    return schemas


def _problem_schema(problems: tuple[ProblemKind, ...]) -> dict[str, Any]:
    reasons = list(dict.fromkeys(problem.reason for problem in problems))
    required = {"type": STRING, "title": STRING, "status": INTEGER, "reason": {"enum": reasons}, "detail": STRING}
    where = {
        "store": STRING,
        "partition": INTEGER,
        "position": POSITION_SCHEMA,
        "bound": POSITION_SCHEMA,
        "owner": STRING,
        "failures": _FAILURES,
        "reasons": {"type": "array", "items": STRING},
    }
    return object_schema(required | where, optional=tuple(where))


def object_schema(properties: Mapping[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schema of an object. The members that are not `optional` are required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_STORE = "/v1/stores/{store}"
# Path below a store → the kinds of stores that answer there. Of a feed of changes there is no end to show.
_ANSWERED_BY: Mapping[str, tuple[str, ...]] = {
    "": STORE_KINDS,
    "/query": ("key_value", "versioned"),
    **{
        path: tuple(each for each in STORE_KINDS if kind.stores(each, of_key=of_key))
        for kind in KINDS
        for path, _, of_key in kind.paths()
    },
}
# Type → a key of it as it is written in a URL; of types that a registry knows there is none.
_KEYS = {
    "string": "a",
    "json": '"a"',
    "bytes": "YQ",
    "int32": "1",
    "int64": "1",
    "float64": "1.5",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "datetime": "2026-01-31T12:00:00Z",
}


def with_examples(
    document: Mapping[str, Any], stores: Sequence[StoreDefinition], keys: Mapping[str, str]
) -> dict[str, Any]:
    """Return the document with an example of each query, of the first store that answers it. `keys` are keys of some
    stores, written as in a URL."""
    paths = {
        path: methods
        if (store := _first(stores, path)) is None
        else {method: _shown(operation, store, keys) for method, operation in methods.items()}
        for path, methods in document["paths"].items()
    }
    return {**document, "paths": paths}


def _first(stores: Sequence[StoreDefinition], path: str) -> StoreDefinition | None:
    kinds = _ANSWERED_BY.get(path.removeprefix(_STORE), ()) if path.startswith(_STORE) else ()
    return next((store for store in stores if store.plain_kind in kinds), None)


def _shown(operation: Mapping[str, Any], store: StoreDefinition, keys: Mapping[str, str]) -> dict[str, Any]:
    key = keys.get(store.name, _KEYS.get(store.key.name))
    given = {"store": store.name} if key is None else {"store": store.name, "key": key}
    shown = dict(operation)
    shown["parameters"] = [
        {**parameter, "example": given[parameter["name"]]}
        if parameter["in"] == "path" and parameter["name"] in given
        else parameter
        for parameter in operation["parameters"]
    ]
    if "requestBody" in operation:
        body: dict[str, Any] = {"type": "range", "limit": 10}
        if key is not None:
            body = {"type": "key", "key": json_of_text(store.key, key)}
        (media_type,) = operation["requestBody"]["content"]
        content = {media_type: {**operation["requestBody"]["content"][media_type], "example": body}}
        shown["requestBody"] = {**operation["requestBody"], "content": content}
    return shown
