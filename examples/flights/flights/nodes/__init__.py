"""`python -m flights --nodes`: a month of departures on several nodes and a real broker; one is killed, one is added."""
