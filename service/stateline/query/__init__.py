"""Queries as values, how they are run on stores, and how a server and a worker send them to each other."""
