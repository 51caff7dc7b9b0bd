"""The console at `/`."""
