"""SQL over every kind of store, while records come in: the rows are those of the same statement over plain tables of
the input up to the answer's Position.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import uuid4

from support.oracles.sql_scene import SqlDeployment, SqlScene, check_statements
from support.run.length import long_or_short

EXAMPLES = long_or_short(2_000, 25)


def test_rows_are_those_of_the_same_statement_over_the_input_up_to_the_position(tmp_path: Path) -> None:
    deployment = SqlDeployment(tmp_path, "", uuid4().hex[:8])
    with closing(deployment.log):
        scene = SqlScene(deployment)
        with (
            deployment.worker(commit__interval__ms=200),
            deployment.server(server__wait__max__ms=60_000, sql__timeout__ms=120_000) as client,
        ):
            scene.clients = [client]
            with scene.going_on():
                check_statements(scene, EXAMPLES)
        assert scene.cuts
