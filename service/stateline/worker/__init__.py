"""The worker: reads topics, keeps stores, writes changelogs. `loop.run` starts one.

A folder imports only from those below it.

| folder     | question                              | modules                                                         |
|------------|---------------------------------------|-----------------------------------------------------------------|
| `loop`     | one round, starting over              | `worker`, `run`                                                 |
|            | records through tasks, in slices      | `task_executor`, `pace`                                         |
|            | order of time between partitions      | `record_order`, `partition_queues`                              |
|            | figures once a second                 | `reporting`                                                     |
| `group`    | partitions that come and go           | `group_member`, `task_manager`                                  |
|            | when it joins and leaves              | `joining`, `crash_loop`, `fitness`                              |
| `commit`   | the order of a commit, and when       | `commit_order`, `commit_schedule`, `work_trace`, `purge`        |
|            | whole epochs of pipelines             | `epochs`                                                        |
|            | transactions of lost members          | `lost_transactions`                                             |
| `queries`  | queries of uncommitted state          | `query_socket`, `query_connection`, `unix_listener`,            |
|            |                                       | `hosted_queries`, `waiting_queries`, `custom_queries`           |
|            | snapshots                             | `snapshots`                                                     |
| `standbys` | which tasks it follows, and how       | `standby_assignment`, `standby_tasks`, `standby_store`          |
|            | files of another node                 | `copied_tasks`                                                  |
| `restore`  | what a task has to restore            | `restore_plan`, `restorer`, `store_restore`, `polled_records`   |
|            | what is lacking                       | `lost_records`, `missed_input`                                  |
|            | global tables, format upgrades        | `global_tables`, `global_table_store`, `format_upgrades`        |
| `tasks`    | a task's life, and all of them        | `task`, `tasks`, `task_topology`, `task_settings`               |
|            | what it does with records             | `task_processing`                                               |
|            | its stores                            | `task_stores`, `changelog_offsets`, `store_formats`,            |
|            |                                       | `readable_stores`, `store_commits`, `commit_marks`              |
|            | topics that are created again         | `topic_watch`                                                   |
| `files`    | files for other processes             | `registration`, `deployment_files`, `topic_ids`, `figures`,     |
|            |                                       | `housekeeping`                                                  |
"""

from stateline.processing.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
