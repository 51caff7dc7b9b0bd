"""Records through processors and operators: what both the worker and Spark's pipelines do with them."""
