"""State that the processes of a pipeline share."""
