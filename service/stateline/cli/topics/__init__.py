"""List, create and delete topics from the command line."""
