"""Where a query is answered: which partitions are asked (`query_routing`), and which copy of each (`copies`)."""
