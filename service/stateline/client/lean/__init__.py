"""The client of Spark's processes and of the command line: the standard library, the store library's errors, and
pyarrow where rows are read.

Executors have neither httpx nor pydantic, and every one of them pays for what it imports; no pool or session is of use
there: a process asks a few times, then reads one long stream. `stateline.client.passing` decides about retries, as for
`Client`.
"""
