"""State that worker processes publish for servers and for each other."""
