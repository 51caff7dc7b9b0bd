"""Copies the stores of Kafka Streams into databases of Stateline."""
