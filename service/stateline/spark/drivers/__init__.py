"""Pipelines as processes: drivers, their locks, their status, their restarts."""
