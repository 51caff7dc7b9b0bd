"""The rows of one partition of a snapshot, or of one split of it, read to their end whatever becomes of connections and
servers.

A stream that breaks off is gone on with: in key-value stores behind the last key that arrived (`after`), in others
after as many rows as arrived (`skip`), for the rows of a snapshot come in the same order each time.
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
"""Characters of a key in a URL; proxies take 8 KiB of one, and percent-encoding may make three of each."""
_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """The rows to read of a partition: columns in this order, rows within `bounds` (`lower`, `upper`, `prefix`, `from`,
    `to`, `as_of`, `split`, as a URL writes them), and only those of `keys`, as JSON has them, if there are any; bounds
    are times then.
    """

    columns: tuple[str, ...]
    bounds: tuple[tuple[str, str], ...] = ()
    keys: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a stream has come: the last key that arrived, and the rows since."""

    after: str | None = None
    skip: int = 0

    def behind(self, batch: pa.RecordBatch, *, by_key: bool) -> _Place:
        """Where this batch ends."""
        key = _last_key(batch) if by_key else None
        return replace(self, skip=self.skip + batch.num_rows) if key is None else _Place(key)

    def parameters(self) -> dict[str, str]:
        found = {} if self.after is None else {"after": self.after}
        return found | ({"skip": str(self.skip)} if self.skip else {})


@dataclass(frozen=True, slots=True)
class PartAddress:
    """Where a partition of a snapshot is read: the path, at any server of one node, and where there are several nodes
    the whole address, at the one that keeps it."""

    path: str
    url: str | None = None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> PartAddress:
        """Return the address from the server's description of the part."""
        return cls(described["path"], described.get("url"))

    def at(self, server: LeanClient) -> LeanClient:
        """Whom to ask: the node that keeps it, and those that were given behind it, for one of them may be the same
        node at an address that leads there from here. Raises `ConfigurationError` where a token that was meant for
        https would be sent without."""
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
    """In which parts, of about so many bytes on the server's disk, the rows within `bounds` may be read: each is a
    bound `split`, and each row is in one of them. At least one. Raises as `LeanClient.ask`."""
    parameters = urlencode({**bounds, "size_bytes": size_bytes}, quote_via=quote, safe="")
    asked = LeanRequest("GET", f"{path}/splits?{parameters}")
    found = server.ask(asked, patience_s=min(PLANNING_S, server.retry_s))
    return [each["split"] for each in found["splits"]]


def batches(server: LeanClient, path: str, query: RowsQuery) -> Generator[pa.RecordBatch, None, None]:
    """The rows, in the store's types; `path` is that of the partition in the snapshot.

    Raises `CursorExpiredError` when the snapshot is gone, which is never the end of the rows, `NotReadyError` when
    nothing arrived for the server's `retry_s`, and what the server refuses.
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
                        failover.progressed()  # however long Spark took for what it was given
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
    """A time or a number as a body has it."""
    return int(text) if _NUMBER.fullmatch(text) else text


def _last_key(batch: pa.RecordBatch) -> str | None:
    """The last key as a URL writes it; None where rows do not come by key, and for what no URL should hold."""
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
        return None  # NaN has no text that is read back as the same bytes, and a type of one's own has any
    return text if len(text) <= LONGEST_KEY else None


def _unchanged(before: pa.Schema | None, now: pa.Schema) -> pa.Schema:
    """Return the schema. Its metadata (the commit, the retention) decides which rows there are, and their order."""
    if before is not None and not before.equals(now, check_metadata=True):
        raise CursorExpiredError("The server was restarted with another declaration of this store while it was read.")
    return now


def _gone(path: str, error: Exception) -> CursorExpiredError:
    return CursorExpiredError(
        f"{path} cannot be read any more: {error} Nothing of the job's result can be trusted. Run it again with a "
        "new DataFrame, which pins a new snapshot; read a snapshot of one's own with `renew`, or with a longer lease."
    )
