"""The application of `query_server`, for servers and workers that are processes."""

from __future__ import annotations

from support.processes.query_server import make_app

app = make_app()
