"""A real Kafka broker on this machine, as the demo of several nodes and the tests start it."""

from stateline.demo.broker.maven import JarsUnavailableError, jars, maven_environment, one_at_a_time
from stateline.demo.broker.recipe import BrokerRecipe, BrokerUnavailableError, answers

__all__ = [
    "BrokerRecipe",
    "BrokerUnavailableError",
    "JarsUnavailableError",
    "answers",
    "jars",
    "maven_environment",
    "one_at_a_time",
]
