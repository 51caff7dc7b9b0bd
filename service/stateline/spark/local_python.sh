#!/bin/sh
# The Python of Spark's own processes on this machine, which `session.py` names as PYSPARK_PYTHON. Spark puts a zip of
# its Python sources first in their PYTHONPATH, and what comes from a zip is compiled anew by each of these processes:
# 0.7 s of a processor, for a source, for a stateful processor, for a worker. The installed PySpark is the same.
case "$PYTHONPATH" in
    */pyspark.zip:*/py4j-*-src.zip:*) PYTHONPATH=${PYTHONPATH#*/py4j-*-src.zip:} ;;
esac
exec "${_STATELINE_LOCAL_PYTHON:-python3}" "$@"
