"""Pipelines under ``spark-submit``: the script that it runs, which is ``stateline pipeline`` under another name.

    spark-submit --master spark://host:7077 "$(python -m stateline.spark.submit --path)" flights:app delays

Arguments and settings are those of ``stateline pipeline``; all pipelines run in this one driver.
"""

from __future__ import annotations

import os
import sys


def is_submitted() -> bool:
    """Whether ``spark-submit`` has started this process, and with it the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def main(arguments: list[str]) -> int:
    """Run the pipelines, or say where this script is; the exit code of ``stateline pipeline``."""
    if arguments == ["--path"]:
        sys.stdout.write(f"{os.path.abspath(__file__)}\n")
        return 0
    # As a script, its own folder comes first on the path, where `sink` and `columns` are not what others mean.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd(), *(entry for entry in sys.path if os.path.abspath(entry) != here)]
    from stateline.cli.main import main as stateline

    return stateline(["pipeline", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
