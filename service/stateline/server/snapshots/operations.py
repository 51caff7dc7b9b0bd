"""The requests of `/v1/snapshots`, as the OpenAPI document shows them."""

from __future__ import annotations

from stateline.query.kinds import INTEGER, POSITION_SCHEMA, STRING
from stateline.server.contract.formats import ARROW
from stateline.server.contract.openapi import Operation, object_schema
from stateline.server.snapshots.filter import PARAMETERS, SPLIT_PARAMETERS

PATH = "/v1/snapshots"
ONE = f"{PATH}/{{id}}"
ROWS = f"{ONE}/stores/{{store}}/partitions/{{partition}}"
SPLITS = f"{ROWS}/splits"

_TIME = {"type": "integer", "description": "Milliseconds since the epoch."}
_PART = object_schema(
    {
        "path": STRING,
        "node": {"type": "string", "description": "The node that keeps it, with several nodes."},
        "url": {"type": "string", "description": "The whole address at that node, if known."},
        "position": POSITION_SCHEMA,
        "commit": INTEGER,
        "committed_at_ms": INTEGER,
    },
    optional=("node", "url"),
)
_SNAPSHOT = object_schema(
    {
        "id": STRING,
        "created_at": _TIME,
        "expires_at": _TIME,
        "position": POSITION_SCHEMA,
        "stores": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _PART}},
    }
)
_LIST = object_schema({"snapshots": {"type": "array", "items": _SNAPSHOT}})
_SPLIT = object_schema(
    {
        "split": {"type": "string", "description": "The value of the parameter `split` of the rows."},
        "bytes": {"type": "integer", "description": "About how many bytes its rows have on disk."},
    }
)
_SPLITS = object_schema({"splits": {"type": "array", "items": _SPLIT}})
OPERATIONS = (
    Operation(
        PATH,
        "post",
        "Make a snapshot of these stores on all nodes. Stores of one worker are at the same commit.",
        problems=(400, 404, 410, 421, 422, 429, 500, 503),
        members={"stores": True, "ttl_s": False, "pin": False},
        answer=_SNAPSHOT,
        success=201,
        other_success=200,
    ),
    Operation(PATH, "get", "List the snapshots of all nodes.", problems=(422, 500, 503), answer=_LIST),
    Operation(
        ONE, "get", "One snapshot and the end of its lease.", problems=(404, 410, 421, 422, 500, 503), answer=_SNAPSHOT
    ),
    Operation(
        ONE,
        "patch",
        "Renew the lease.",
        problems=(404, 410, 421, 422, 429, 500, 503),
        members={"ttl_s": False},
        answer=_SNAPSHOT,
    ),
    Operation(
        ONE,
        "delete",
        "Release the snapshot. Open streams of rows are completed.",
        problems=(404, 410, 421, 422, 500, 503),
        success=204,
    ),
    Operation(
        ROWS,
        "get",
        "The rows of a partition, as an Arrow stream.",
        PARAMETERS,
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        media_type=ARROW,
    ),
    Operation(
        ROWS,
        "post",
        "The same with a JSON body. With `keys`, only the rows of these keys, in the order of all rows.",
        problems=(400, 404, 406, 410, 421, 422, 429, 500, 503),
        members=dict.fromkeys(("keys", "keys_as", *PARAMETERS), False),
        media_type=ARROW,
    ),
    Operation(
        SPLITS,
        "get",
        "Disjoint parts of the rows, to read in parallel. Parts without a requested row are left out.",
        SPLIT_PARAMETERS,
        problems=(400, 404, 410, 421, 422, 429, 500, 503),
        answer=_SPLITS,
    ),
)
