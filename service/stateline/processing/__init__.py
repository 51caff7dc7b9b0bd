"""Records through processors and operators, for the worker and for Spark's pipelines."""
