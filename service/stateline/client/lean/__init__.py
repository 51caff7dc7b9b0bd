"""The client of Spark's processes and of the command line. It needs the standard library, the store library's errors,
and pyarrow to read rows.

Executors have neither httpx nor pydantic, and every import costs them time. They need no pool: a process sends a few
requests, then reads one long stream. `stateline.client.passing` has the rules for retries.
"""
