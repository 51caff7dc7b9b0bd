"""The worker: reads topics, keeps stores, writes changelogs. `loop.run` starts one.

A folder imports only from those below it. `context` is shared by all parts of a worker. An object belongs to one
worker, or to one of its tasks, and is for the worker's thread only, unless it says otherwise.

| folder     | does                                                                          |
|------------|-------------------------------------------------------------------------------|
| `loop`     | takes rounds and slices, orders records by time, reports figures              |
| `group`    | joins and leaves the group, gets and gives tasks                              |
| `commit`   | commits in the right order and at the right time                              |
| `queries`  | answers servers                                                               |
| `standbys` | follows tasks of other nodes                                                  |
| `restore`  | reads topics into stores                                                      |
| `tasks`    | keeps a task, its stores and its records                                      |
| `files`    | writes files for other processes                                              |
"""

from stateline.processing.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
