"""Take files, the network and memory from a query process. Its imports must be complete before `confine`.

| what                                       | where                                                          |
|--------------------------------------------|----------------------------------------------------------------|
| no new descriptor: no file, no socket      | every Unix (RLIMIT_NOFILE = 0)                                 |
| no byte into a file                        | every Unix (RLIMIT_FSIZE = 0)                                  |
| memory at rest + budget                    | Linux (RLIMIT_AS)                                              |
| an empty file system, a network of its own | Linux with unprivileged user namespaces (Docker refuses them)  |
| no path, no TCP                            | Linux 5.13 and newer with Landlock (TCP: 6.7)                  |
| ends with its parent                       | Linux (PR_SET_PDEATHSIG); elsewhere when its socket closes     |

No library is needed: PyPI's bindings of libseccomp are of 2021 or have one release.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_IS_LINUX = sys.platform == "linux"
_NEW_USER, _NEW_NS, _NEW_NET, _NEW_IPC = 0x10000000, 0x00020000, 0x40000000, 0x08000000
_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_EMPTY = 1 | 2 | 4 | 8  # read-only, no suid, no devices, no programs
_SET_PDEATHSIG, _SET_NO_NEW_PRIVS = 1, 38
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same number on every architecture
_CAPABILITY_VERSION_3 = 0x20080522
# Rights of files and of TCP that a version of Landlock knows. A ruleset that handles a right without a rule denies it.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_MOST_FILE_RIGHTS = 16  # from version 5 on
_TCP_SINCE, _TCP = 4, 0b11
_PLACE = "/tmp"

_libc = ctypes.CDLL(None, use_errno=True)


def leave_namespaces() -> bool:
    """Move into a user, mount and network namespace of its own. Return whether the platform allows it. Call it before
    any thread starts. The process dies with its parent from here on."""
    if not _IS_LINUX:
        return False
    _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_USER | _NEW_NS | _NEW_NET | _NEW_IPC) != 0:
        return False
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as mapping:
                mapping.write(text)
    except OSError:
        return False
    return True


def confine(memory_bytes: int, *, in_namespaces: bool) -> tuple[str, ...]:
    """Give up files, the network and more memory than this, for good. Return what holds: `memory`, `namespaces`,
    `landlock`, beside the limits that hold everywhere."""
    held = []
    at_rest = _virtual_bytes() if _IS_LINUX else 0
    if in_namespaces and _empty_root():
        held.append("namespaces")
    if _IS_LINUX and _landlock():
        held.append("landlock")
    if at_rest:
        resource.setrlimit(resource.RLIMIT_AS, (at_rest + memory_bytes,) * 2)
        held.append("memory")
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))
    return tuple(held)


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _empty_root() -> bool:
    """Make an empty, read-only directory the root, and drop the capabilities of the namespace."""
    place = _PLACE.encode()
    if _libc.mount(None, b"/", None, _PRIVATE, None) or _libc.mount(b"none", place, b"tmpfs", _EMPTY, b"size=4k"):
        return False
    try:
        os.chroot(_PLACE)
        os.chdir("/")
    except OSError:
        return False
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    return bool(_libc.capset(header, none) == 0)


def _landlock() -> bool:
    """Deny every path and every TCP connection. Return whether the kernel does."""
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1 or _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    files = (1 << _FILE_RIGHTS.get(version, _MOST_FILE_RIGHTS)) - 1
    rights = (ctypes.c_uint64 * 2)(files, _TCP if version >= _TCP_SINCE else 0)
    size = ctypes.sizeof(rights) if version >= _TCP_SINCE else ctypes.sizeof(ctypes.c_uint64)
    rules = _libc.syscall(_CREATE_RULESET, rights, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        return bool(_libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)
