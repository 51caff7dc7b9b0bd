"""`stateline sql`: statements against a running server, in a shell or a script."""
