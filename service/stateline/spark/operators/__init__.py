"""What Spark has no equal for: tables from changelogs, their joins, and state in order of offsets."""
