"""`stateline reset`: an application, or a part of it, starts over.

`where_to` and `scope` read the request. `found` reads the log and the disk. `plan` derives the steps (pure). `running`
finds processes that forbid a reset. `execution` asks and does it.
"""
