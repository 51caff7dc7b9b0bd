"""Requests that another process of this server answers: the one that holds a cursor, or one for large reads."""
