"""Queries over HTTP: `point_reads` and `routes` take them, `requests` reads what is asked, `scan_answers` gives pages.

From there a query goes to `server.routing` (which partitions, which copy), `stateline.query.execution` and
`stateline_store.reads.queries`, which runs it. `CONTRIBUTING.md` has the steps for another kind of
query.
"""
