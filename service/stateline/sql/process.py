"""A query process: `python -m stateline.sql.process SOCKET MEMORY_BYTES`. `pool` starts it.

It answers one statement after the other until its socket closes. If it hangs, the server ends it with SIGKILL.
"""

from __future__ import annotations

import json
import socket
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

from stateline.sql import sandbox

_UNUSED = ("pandas", "polars", "torch", "tensorflow")


class _WithoutUnused(MetaPathFinder):
    """Keep large packages out, for which DuckDB and pyarrow look."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in _UNUSED:
            raise ModuleNotFoundError(name, name=name)
        return None


def main() -> None:
    in_namespaces = sandbox.leave_namespaces()  # before imports that start threads
    sys.meta_path.insert(0, _WithoutUnused())
    warnings.filterwarnings("ignore", "Arrow output on a DB-API result")  # of a lookup, which has few rows
    from stateline.sql.messages import Kind, frame
    from stateline.sql.serving import QueryProcess

    connection = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes = int(sys.argv[2])
    process = QueryProcess(connection, memory_bytes)
    process.warm_up()
    held = sandbox.confine(memory_bytes, in_namespaces=in_namespaces)
    connection.sendall(frame(Kind.READY, json.dumps(held).encode()))
    process.serve()


if __name__ == "__main__":
    main()
