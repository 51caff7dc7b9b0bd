"""Sockets between processes of one machine: where they lie, and whose they are."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from stateline.deployment.unix_sockets import check_user, connected, is_served, listening, trusted_users
from support.run.other_user import NOBODY, listens_at, open_to_all


def test_a_socket_is_reached_however_deep_its_folder_lies(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a folder with a long name"] * 10)
    folder.mkdir(parents=True)
    path = folder / "q.sock"
    assert not is_served(path)
    with listening(path) as listener, connected(path, trusted_users(tmp_path)) as client:
        served, _ = listener.accept()
        with served:
            served.sendall(b"hello")
            client.setblocking(True)
            assert client.recv(5) == b"hello"
        assert is_served(path)
    assert not is_served(path), "its file alone is left"


def test_only_its_user_may_connect_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with listening(tmp_path / "q.sock"):
            assert stat.S_IMODE((tmp_path / "q.sock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_socket_is_private_from_the_moment_at_which_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes, bind = tmp_path / "q.sock", list[int](), socket.socket.bind

    def seen(bound: socket.socket, near: str) -> None:
        bind(bound, near)
        modes.append(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr(socket.socket, "bind", seen)
    before = os.umask(0)
    try:
        listening(path).close()
    finally:
        os.umask(before)
    assert modes == [0o600]


def test_who_connects_looks_whose_process_listens(tmp_path: Path) -> None:
    path, own = tmp_path / "q.sock", os.geteuid()
    with listening(path):
        connected(path, {own}).close()
        with pytest.raises(PermissionError, match=f"runs as user {own}"):
            connected(path, {own + 1})


def test_the_end_of_a_user_that_is_not_trusted_is_refused(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with near, far:
        check_user(near, trusted_users(tmp_path))
        with pytest.raises(PermissionError, match=f"runs as user {os.geteuid()}"):
            check_user(near, frozenset({os.geteuid() + 1}))


def test_nobody_is_connected_with_a_process_of_another_user(tmp_path: Path) -> None:
    path, trusted = tmp_path / "q.sock", trusted_users(Path("/"))
    with open_to_all(tmp_path), listens_at(path):
        with pytest.raises(PermissionError, match=f"runs as user {NOBODY}"):
            connected(path, trusted)
        connected(path, trusted | {NOBODY}).close()
