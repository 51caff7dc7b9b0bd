"""`stateline adopt`: copy the stores of a stopped Kafka Streams application."""
