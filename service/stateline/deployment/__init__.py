"""What the processes of one application leave each other, on disk and in the log."""
