"""Choose the partitions that a query asks (`query_routing`), and a copy of each (`copies`)."""
