"""What the OpenAPI document says of `/v1/snapshots`."""

from __future__ import annotations

from stateline.server.contract.openapi import Operation
from stateline.server.rows.columns import MEDIA_TYPE
from stateline.server.snapshots.filter import PARAMETERS, SPLIT_PARAMETERS

PATH = "/v1/snapshots"
ONE = f"{PATH}/{{id}}"
ROWS = f"{ONE}/stores/{{store}}/partitions/{{partition}}"
SPLITS = f"{ROWS}/splits"

_PART = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "node": {"type": "string", "description": "Which node keeps it, where there are several."},
        "url": {"type": "string", "description": "The whole address at that node, if it is known."},
        "position": {"$ref": "#/components/schemas/Position"},
        "commit": {"type": "integer"},
        "committed_at_ms": {"type": "integer"},
    },
    "required": ["path", "position", "commit", "committed_at_ms"],
}
_SNAPSHOT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "created_at": {"type": "integer", "description": "Milliseconds since the epoch."},
        "expires_at": {"type": "integer", "description": "Milliseconds since the epoch."},
        "position": {"$ref": "#/components/schemas/Position"},
        "stores": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _PART}},
    },
    "required": ["id", "created_at", "expires_at", "position", "stores"],
}
_LIST = {
    "type": "object",
    "properties": {"snapshots": {"type": "array", "items": _SNAPSHOT}},
    "required": ["snapshots"],
}
_SPLITS = {
    "type": "object",
    "properties": {
        "splits": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "split": {"type": "string", "description": "What the parameter `split` of the rows takes."},
                    "bytes": {"type": "integer", "description": "About how many its rows have on disk."},
                },
                "required": ["split", "bytes"],
            },
        }
    },
    "required": ["splits"],
}
OPERATIONS = (
    Operation(
        PATH,
        "post",
        "Keep the committed state of these stores: all that one worker has, at one of its commits; over all nodes.",
        problems=(400, 404, 410, 421, 422, 429, 500, 503),
        members={"stores": True, "ttl_s": False, "pin": False},
        answer=_SNAPSHOT,
        success=201,
        other_success=200,
    ),
    Operation(PATH, "get", "The snapshots that there are, of all nodes.", problems=(422, 500, 503), answer=_LIST),
    Operation(
        ONE,
        "get",
        "One snapshot, and until when it is kept.",
        problems=(404, 410, 421, 422, 500, 503),
        answer=_SNAPSHOT,
    ),
    Operation(
        ONE,
        "patch",
        "Keep it so long from now.",
        problems=(404, 410, 421, 422, 429, 500, 503),
        members={"ttl_s": False},
        answer=_SNAPSHOT,
    ),
    Operation(
        ONE, "delete", "Release it; who reads it reads on.", problems=(404, 410, 421, 422, 500, 503), success=204
    ),
    Operation(
        ROWS,
        "get",
        "The rows of one partition as an Arrow stream.",
        PARAMETERS,
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        media_type=MEDIA_TYPE,
    ),
    Operation(
        ROWS,
        "post",
        "The same as a body; of `keys`, where there are any, those that are there, in the order of all rows.",
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        members=dict.fromkeys(("keys", "keys_as", *PARAMETERS), False),
        media_type=MEDIA_TYPE,
    ),
    Operation(
        SPLITS,
        "get",
        "In which parts the rows may be read, each row in one: those with rows that the parameters ask for.",
        SPLIT_PARAMETERS,
        problems=(400, 404, 410, 421, 422, 429, 500, 503),
        answer=_SPLITS,
    ),
)
