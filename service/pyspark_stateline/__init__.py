"""Makes `spark.read.format("stateline")` known to Spark, which imports every package named `pyspark_…` when it is asked
for a format of Python's for the first time.
"""

from stateline.spark.reading.source import StatelineSource as DefaultSource

__all__ = ["DefaultSource"]
