"""An example: New York's departures of one year, through pipelines, a worker and a server.

`application` declares the stores. `run` replays the year and checks each answer. `nodes` does so for one month on
several nodes, kills one and adds one. `make demo` and `python -m flights` run it.
"""
