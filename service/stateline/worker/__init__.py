"""The worker: reads topics, keeps stores, writes changelogs. `run` starts one.

| to find                               | look into                                                                   |
|---------------------------------------|-----------------------------------------------------------------------------|
| the loop, and starting over           | `worker`                                                                    |
| the order of a commit                 | `commit_order`; when, `commit_schedule`, `write_stall`; `commit_marks`      |
| partitions that come and go           | `group_member`, `task_manager`, `lost_transactions`                         |
| a task: its life, what it does        | `task`, `closing`, `task_processing`; made of `task_topology`, `task_stores`|
| records through tasks, in slices      | `task_executor`, `pace`, `record_order`, `epochs`, `processor_runner`       |
| order of time between partitions      | `record_order`, `partition_queues`                                          |
| a restore                             | `restore_plan`, `restorer`, `store_restore`; what is lacking:               |
|                                       | `lost_records`, `missed_input`                                              |
| standbys                              | `standby_assignment`, `standby_tasks`, `standby_store`, `copied_tasks`      |
| global tables                         | `global_tables`, `global_table_store`                                       |
| queries of uncommitted state          | `query_socket`, `hosted_queries`, `waiting_queries`, `custom_queries`       |
| what it writes for other processes    | `registration`, `deployment_files`, `snapshots`; `reporting`, whose numbers |
|                                       | are `figures` and `store_commits`                                           |
"""

from stateline.processing.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
