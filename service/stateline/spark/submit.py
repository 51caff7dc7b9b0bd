"""The script for ``spark-submit``: ``stateline pipeline`` under another name.

    spark-submit --master spark://host:7077 "$(python -m stateline.spark.submit --path)" flights:app delays

Arguments and settings are those of ``stateline pipeline``. All pipelines run in this one driver.
"""

from __future__ import annotations

import os
import runpy
import sys


def main(arguments: list[str]) -> None:
    """Run the pipelines, or print this script's path. Exits with the code of ``stateline pipeline``."""
    if arguments == ["--path"]:
        sys.stdout.write(f"{os.path.abspath(__file__)}\n")
        return
    # A script's own folder is first on the path. Its `sink` and `columns` would hide other modules.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd(), *(entry for entry in sys.path if os.path.abspath(entry) != here)]
    sys.argv = ["stateline", "pipeline", *arguments]
    # Like `python -m stateline`, but in this process, which Spark watches. This room must not import the command line.
    runpy.run_module("stateline", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
