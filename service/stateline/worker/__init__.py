"""The worker: reads topics, keeps stores, writes changelogs. `loop.run` starts one.

A folder imports only from those below it. `context` is shared by all parts of a worker.

| folder     | what it does                          | modules                                                         |
|------------|---------------------------------------|-----------------------------------------------------------------|
| `loop`     | rounds, slices, order of time,        | `worker`, `run`, `task_executor`, `pace`, `record_order`,       |
|            | figures                               | `partition_queues`, `reporting`                                 |
| `group`    | joins and leaves, gets and gives tasks| `group_member`, `task_manager`, `joining`, `crash_loop`,        |
|            |                                       | `fitness`                                                       |
| `commit`   | the order of a commit, and when       | `commit_order`, `commit_schedule`, `epochs`, `purge`,           |
|            |                                       | `lost_transactions`, `work_trace`                               |
| `queries`  | answers servers                       | `query_socket`, `query_connection`, `hosted_queries`,           |
|            |                                       | `waiting_queries`, `snapshots`                                  |
| `standbys` | follows tasks of other nodes          | `standby_assignment`, `standby_tasks`, `standby_store`,         |
|            |                                       | `copied_tasks`                                                  |
| `restore`  | reads topics into stores              | `restore_plan`, `restorer`, `store_restore`, `missed_input`,    |
|            |                                       | `lost_records`, `changelog_follower`, `polled_records`,         |
|            |                                       | `global_tables`, `global_table_store`, `format_upgrades`        |
| `tasks`    | a task, its stores, its records       | `task`, `tasks`, `task_settings`, `task_processing`,            |
|            |                                       | `task_stores`, `changelog_offsets`, `store_formats`,            |
|            |                                       | `readable_stores`, `store_commits`, `commit_marks`,             |
|            |                                       | `topic_watch`                                                   |
| `files`    | files for other processes             | `registration`, `deployment_files`, `topic_ids`, `figures`,     |
|            |                                       | `housekeeping`                                                  |
"""

from stateline.processing.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
