"""`stateline export`: stores as Parquet files or Delta tables, for programs that do not know Stateline."""
