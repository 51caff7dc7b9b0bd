"""Files and records by which the processes of an application know each other."""
