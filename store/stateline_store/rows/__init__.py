"""How rows are keyed and encoded, in files and in memory. Pure."""
