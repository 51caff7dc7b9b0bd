"""Processes that belong together: started, watched, ended; what they write to the terminal and may use."""
