"""`python -m flights --nodes`: a month of departures on several nodes and a broker. One is killed, one is added."""
