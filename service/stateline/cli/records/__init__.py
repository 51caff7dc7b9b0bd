"""Write and read records of topics from the command line."""
