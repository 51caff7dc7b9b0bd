"""The query socket: answers of the stores that this worker has."""
