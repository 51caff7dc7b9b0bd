"""`stateline snapshot`: export stores of a running server to files, all of one moment.

    DIR/<store>/part-00000.parquet    a file per partition: written as .part-….tmp, renamed when it is whole
    DIR/snapshot.json                 {"id", "created_at", "position", "stores": {store: rows}}
    DIR/_SUCCESS                      empty; written last: without it something is missing

Columns and types are those of the server's Arrow streams. Times become `timestamp[ms, UTC]`. A lost connection is
resumed. pyarrow is imported with the first rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import create_connection
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from stateline.cli.target import word_of
from stateline.client.lean.client import PLANNING_S, LeanClient, LeanRequest, segment
from stateline.spark.reading.lease import pinned
from stateline.spark.reading.source_options import read_server
from stateline_store.errors import InvalidArgumentError, NotReadyError

if TYPE_CHECKING:
    import pyarrow as pa

    from stateline.config.settings import Config

Format = Literal["parquet", "arrow"]
_FORMATS: tuple[Format, ...] = ("parquet", "arrow")
_PORTS = {"http": 80, "https": 443}
_TIMES = ("timestamp", "start", "end", "valid_to")


@dataclass(frozen=True, slots=True)
class Export:
    """The stores, columns and rows to write, and the folder. `bounds` have the contract's names: `prefix`, `as_of`."""

    stores: tuple[str, ...]
    format: Format
    directory: Path
    columns: tuple[str, ...] | None
    bounds: Mapping[str, str]
    ttl_s: int


def url_of(config: Config) -> str:
    """The URL of the application's server for this machine, from its settings."""
    host = config.server_host if config.server_host not in ("0.0.0.0", "::") else "127.0.0.1"
    scheme = "http" if config.server_tls_certificate_file is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.server_port}"


def server_at(url: str | None, token_file: Path | None, ca_file: Path | None) -> LeanClient:
    """Return a client of this server, by default of this machine's. Raises `InvalidArgumentError` for an invalid URL,
    and `NotReadyError` if nothing listens there."""
    options = {"url": url or "http://127.0.0.1:8000"}
    options |= {name: str(path.resolve()) for name, path in (("token_file", token_file), ("ca_file", ca_file)) if path}
    server = replace(read_server(options, os.environ), to_wait_longer="run the command again")
    if len(server.urls) == 1 and not _listens(server.urls[0], server.timeout_s):
        raise NotReadyError(
            f"No server listens at {server.urls[0]}. Start one (stateline run MODULE:APP), or give its address with "
            "--url."
        )
    return server


def _listens(url: str, timeout_s: float) -> bool:
    """Return False if the machine at this address refuses. The first request tells anything else."""
    parts = urlsplit(url)
    with suppress(OSError):
        try:
            create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), timeout_s).close()
        except ConnectionRefusedError:
            return False
    return True


def export_of(
    stores: Sequence[str],
    format_: str,
    directory: Path,
    *,
    columns: str | None,
    prefix: str | None,
    as_of: str | None,
    ttl_s: int,
) -> Export:
    """Read the options. Raises `InvalidArgumentError` for an unknown format."""
    form = word_of("--to", format_, _FORMATS)
    bounds = {"prefix": prefix, "as_of": as_of}
    return Export(
        tuple(dict.fromkeys(stores)),
        form,
        directory,
        None if columns is None else tuple(name.strip() for name in columns.split(",")),
        {name: text for name, text in bounds.items() if text is not None},
        ttl_s,
    )


def export(server: LeanClient, chosen: Export) -> dict[str, int]:
    """Write the files. Returns the rows of each store. Releases the snapshot in any case.

    Raises `InvalidArgumentError` if the directory is not empty, what the server refuses, and `CursorExpiredError` if
    the snapshot expires meanwhile.
    """
    _check_directory(chosen.directory)
    described = {
        store: server.ask(LeanRequest("GET", f"/v1/stores/{segment(store)}"), patience_s=PLANNING_S)
        for store in chosen.stores
    }
    schemas = {store: schema_of(said, chosen.columns) for store, said in described.items()}
    with pinned(server, chosen.stores, chosen.ttl_s) as snapshot:
        counts = {
            store: _write_store(server, chosen, store, parts, schemas[store])
            for store, parts in snapshot["stores"].items()
        }
        about = {name: snapshot[name] for name in ("id", "created_at", "position")} | {"stores": counts}
        (chosen.directory / "snapshot.json").write_text(json.dumps(about, indent=1) + "\n")
        (chosen.directory / "_SUCCESS").touch()
    return counts


def _check_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = next(directory.iterdir(), None)
    except OSError as error:
        raise InvalidArgumentError(f"--out {directory} cannot be written: {error.strerror}.") from error
    if found is not None:
        raise InvalidArgumentError(f"--out {directory} has {found.name} in it: name an empty folder, or a new one.")


def schema_of(said: Mapping[str, Any], wanted: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of a store as the server describes it, all or those wanted. Raises `InvalidArgumentError` for
    one that it lacks."""
    import pyarrow as pa

    kinds = {
        "string": pa.utf8(),
        "binary": pa.binary(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "headers": pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary())])),
    }
    known = {
        column["name"]: pa.timestamp("ms", "UTC") if column["name"] in _TIMES else kinds[column["type"]]
        for column in said["columns"]
    }
    for name in wanted or ():
        if name not in known:
            raise InvalidArgumentError(
                f"--columns {name[:60]!r} is none of {said['store']!r}: it has {', '.join(known)}."
            )
    return pa.schema([(name, known[name]) for name in (known if wanted is None else wanted)])


def _write_store(server: LeanClient, chosen: Export, store: str, parts: Mapping[str, Any], schema: pa.Schema) -> int:
    from stateline.client.lean.snapshot_rows import PartAddress, RowsQuery, batches

    folder = chosen.directory / store
    folder.mkdir()
    query, total = RowsQuery(tuple(schema.names), tuple(chosen.bounds.items())), 0
    for number in sorted(parts, key=int):
        path = folder / f"part-{int(number):05d}.{chosen.format}"
        part = PartAddress.of(parts[number])
        with closing(batches(part.at(server), part.path, query)) as found:
            total += _write(path, chosen.format, found, schema)
    return total


def _write(path: Path, format_: Format, found: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write one file of these rows, also without rows. It appears whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draft, rows = path.with_name(f".{path.name}.tmp"), 0
    writer: Any = pq.ParquetWriter(draft, schema) if format_ == "parquet" else pa.ipc.new_file(str(draft), schema)
    with writer:
        for batch in found:
            arrays = [array.cast(kind) for array, kind in zip(batch.columns, schema.types, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rows += batch.num_rows
    draft.rename(path)
    return rows
