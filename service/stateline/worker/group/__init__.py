"""The worker in its consumer group: when it joins and leaves, and how tasks come and go."""
