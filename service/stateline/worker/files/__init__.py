"""Files that the worker writes for other processes of its machine."""
