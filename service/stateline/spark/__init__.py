"""Pipelines: functions from streaming DataFrames to one, run by Spark into a result topic exactly once."""
