"""`stateline demo`: a year of New York's departures through pipelines, a worker and a server, checked (`run`); with
`--nodes` a month of them, on several nodes of which one is killed (`nodes`)."""
