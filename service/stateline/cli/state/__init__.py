"""Show stores, settings and state directories from the command line."""
