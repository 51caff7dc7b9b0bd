"""Operators that Spark does not have: tables from changelogs, their joins, and state in order of offsets."""
