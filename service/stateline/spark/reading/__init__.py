"""Stores as Spark reads them: snapshots as DataFrames, committed changes as a stream."""
