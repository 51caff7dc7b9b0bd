"""Read all rows of a snapshot's partition, or of a split of it, over lost connections and restarted servers.

After a break, a new stream continues. In key-value stores it begins after the last key (`after`). In others it leaves
out the rows that have arrived (`skip`). A snapshot's rows always have the same order.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from stateline.client.lean.arrow_body import ArrowBody
from stateline.client.lean.client import ARROW, LOST, PLANNING_S, Failover, LeanClient, LeanRequest
from stateline_store.errors import ConfigurationError, CursorExpiredError, DoesNotExistError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_KEY = 2000
"""Characters of a key in a URL. Proxies accept URLs of 8 KiB, and percent-encoding may triple the length."""
_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """The columns, in this order, and the rows to read of a partition.

    `bounds` are parameters of the URL: `lower`, `upper`, `prefix`, `from`, `to`, `as_of`, `split`. With `keys` (values
    of JSON), only the rows of these keys are read. Then bounds are times only.
    """

    columns: tuple[str, ...]
    bounds: tuple[tuple[str, str], ...] = ()
    keys: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place in a stream: the last received key, and the number of rows after it."""

    after: str | None = None
    skip: int = 0

    def behind(self, batch: pa.RecordBatch, *, by_key: bool) -> _Place:
        """Return the place after this batch."""
        key = _last_key(batch) if by_key else None
        return replace(self, skip=self.skip + batch.num_rows) if key is None else _Place(key)

    def parameters(self) -> dict[str, str]:
        found = {} if self.after is None else {"after": self.after}
        return found | ({"skip": str(self.skip)} if self.skip else {})


@dataclass(frozen=True, slots=True)
class PartAddress:
    """The address of a snapshot's partition. `path` is valid at any server of the node. With several nodes, `url` is
    the whole address at the node that keeps the partition."""

    path: str
    url: str | None = None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> PartAddress:
        """Return the address from the server's description of the part."""
        return cls(described["path"], described.get("url"))

    def at(self, server: LeanClient) -> LeanClient:
        """Return a client that first asks the node that keeps the partition, then the given servers. One of those may
        be the same node, at an address that this machine reaches. Raises `ConfigurationError` if a token for https
        would be sent without https."""
        if self.url is None:
            return server
        node = self.url.removesuffix(self.path)
        if node.startswith("http:") and not any(url.startswith("http:") for url in server.urls):
            raise ConfigurationError(
                f"{self.url} is to be asked without https, and {server.urls[0]} was given with it: set node.url of "
                "every node to an address with https."
            )
        return replace(server, urls=(node, *(url for url in server.urls if url.rstrip("/") != node)))


def splits(server: LeanClient, path: str, bounds: Mapping[str, str], size_bytes: int) -> list[str]:
    """Return bounds `split` that divide the rows within `bounds`, at least one. Each row is in exactly one split. Each
    split has about `size_bytes` on the server's disk. Raises like `LeanClient.ask`."""
    parameters = urlencode({**bounds, "size_bytes": size_bytes}, quote_via=quote, safe="")
    asked = LeanRequest("GET", f"{path}/splits?{parameters}")
    found = server.ask(asked, patience_s=min(PLANNING_S, server.retry_s))
    return [each["split"] for each in found["splits"]]


def batches(server: LeanClient, path: str, query: RowsQuery) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows in the store's types. `path` is that of the snapshot's partition.

    Raises `CursorExpiredError` if the snapshot is gone, also after some rows. Raises `NotReadyError` if nothing arrives
    for the client's `retry_s`, and the server's other errors.
    """
    import pyarrow as pa

    failover, place, schema = Failover(server, server.retry_s), _Place(), None
    while True:
        try:
            with server.opened(failover.url, _asked(path, query, place)) as response:
                body = ArrowBody(response)
                with pa.ipc.open_stream(body) as reader:
                    schema = _unchanged(schema, reader.schema)
                    for batch in reader:
                        place = place.behind(batch, by_key=query.keys is None)
                        yield batch
                        failover.progressed()  # after Spark has used the batch, so that its time does not count
                body.check_end()
            return
        except (CursorExpiredError, DoesNotExistError) as error:
            raise _gone(path, error) from error
        except (*LOST, pa.ArrowInvalid) as error:
            failover.pause(error)


def _asked(path: str, query: RowsQuery, place: _Place) -> LeanRequest:
    parameters = {"columns": ",".join(query.columns), **dict(query.bounds), **place.parameters()}
    if query.keys is None:
        return LeanRequest("GET", f"{path}?{urlencode(parameters, quote_via=quote, safe='')}", accept=ARROW)
    members = {name: _in_json(text) if name != "columns" else text for name, text in parameters.items()}
    return LeanRequest("POST", path, {**members, "keys": list(query.keys)}, accept=ARROW)


def _in_json(text: str) -> str | int:
    """Return a parameter's text as a member of a JSON body: numbers as int."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _last_key(batch: pa.RecordBatch) -> str | None:
    """Return the batch's last key as a URL writes it. None if rows are not ordered by key, or the key has no safe
    text."""
    metadata = batch.schema.metadata or {}
    kind, key_type = metadata.get(b"stateline.kind", b""), metadata.get(b"stateline.key_type", b"")
    if not kind.endswith(b"key_value") or "key" not in batch.schema.names or not batch.num_rows:
        return None
    key = batch.column("key")[batch.num_rows - 1].as_py()
    if key_type in (b"string", b"json", b"int32", b"int64"):
        text = str(key)
    elif key_type == b"bytes":
        text = base64.urlsafe_b64encode(key).decode()
    else:
        return None  # a float's NaN, or a key of another type, may not be read back as the same bytes
    return text if len(text) <= LONGEST_KEY else None


def _unchanged(before: pa.Schema | None, now: pa.Schema) -> pa.Schema:
    """Return the new schema. Raises `CursorExpiredError` if it differs: its metadata (the commit, the retention)
    decides the rows and their order."""
    if before is not None and not before.equals(now, check_metadata=True):
        raise CursorExpiredError("The server was restarted with another declaration of this store while it was read.")
    return now


def _gone(path: str, error: Exception) -> CursorExpiredError:
    return CursorExpiredError(
        f"{path} cannot be read any more: {error} Nothing of the job's result can be trusted. Run it again with a "
        "new DataFrame, which pins a new snapshot; read a snapshot of one's own with `renew`, or with a longer lease."
    )
