"""`stateline demo`: a year of New York's departures through a pipeline, a worker and a server, checked."""

from stateline.demo.run import run_demo

__all__ = ["run_demo"]
