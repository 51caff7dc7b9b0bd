"""From topics to the frames, tables and streams that a pipeline's function gets."""
