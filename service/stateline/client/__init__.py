"""The Python client of Stateline's HTTP API: `Client` waits in threads, `AsyncClient` awaits in asyncio.

    with Client("http://127.0.0.1:8000") as client:
        flights = client.store("flights")
        answer = flights.get("UA1545")
        for entry in flights.range(prefix="UA"):
            ...

Needs httpx, pydantic and orjson, and pyarrow only where Arrow is read.
"""

from stateline.client.async_client import AsyncClient, AsyncScan, AsyncSnapshot, AsyncStore
from stateline.client.client import Client, Scan, Snapshot, Store
from stateline.client.failures import (
    CursorExpiredError,
    DoesNotExistError,
    ForbiddenError,
    GatewayError,
    InvalidArgumentError,
    NotActiveError,
    NotPresentError,
    NotReadyError,
    NotUpToBoundError,
    RequestError,
    StoreExceptionError,
    TooManyRequestsError,
    UnauthenticatedError,
    UnexpectedAnswerError,
    UnknownQueryTypeError,
    UnreachableError,
)
from stateline.client.feed import Change
from stateline.client.requests import JsonKey, Key, Order, Time
from stateline.client.results import (
    Answer,
    CountAnswer,
    Entry,
    FoundEntry,
    Instance,
    KeyAnswer,
    KeyedWindow,
    KeysAnswer,
    Page,
    PartitionAnswer,
    Pipeline,
    PipelineStatus,
    PositionAnswer,
    Problem,
    Readiness,
    SnapshotDetails,
    SnapshotPart,
    StoreColumn,
    StoreDetails,
    StoredPartition,
    StoreType,
    Subtopology,
    TopicType,
    Topology,
    Version,
    Window,
)
from stateline.client.retries import NEVER, Retries
from stateline.client.session import Session
from stateline_store import IsolationLevel, Position, RetryLaterError, StatelineError

__all__ = [
    "NEVER",
    "Answer",
    "AsyncClient",
    "AsyncScan",
    "AsyncSnapshot",
    "AsyncStore",
    "Change",
    "Client",
    "CountAnswer",
    "CursorExpiredError",
    "DoesNotExistError",
    "Entry",
    "ForbiddenError",
    "FoundEntry",
    "GatewayError",
    "Instance",
    "InvalidArgumentError",
    "IsolationLevel",
    "JsonKey",
    "Key",
    "KeyAnswer",
    "KeyedWindow",
    "KeysAnswer",
    "NotActiveError",
    "NotPresentError",
    "NotReadyError",
    "NotUpToBoundError",
    "Order",
    "Page",
    "PartitionAnswer",
    "Pipeline",
    "PipelineStatus",
    "Position",
    "PositionAnswer",
    "Problem",
    "Readiness",
    "RequestError",
    "Retries",
    "RetryLaterError",
    "Scan",
    "Session",
    "Snapshot",
    "SnapshotDetails",
    "SnapshotPart",
    "StatelineError",
    "Store",
    "StoreColumn",
    "StoreDetails",
    "StoreExceptionError",
    "StoreType",
    "StoredPartition",
    "Subtopology",
    "Time",
    "TooManyRequestsError",
    "TopicType",
    "Topology",
    "UnauthenticatedError",
    "UnexpectedAnswerError",
    "UnknownQueryTypeError",
    "UnreachableError",
    "Version",
    "Window",
]
