"""From the frames of a pipeline to its result topics, exactly once in effect."""
