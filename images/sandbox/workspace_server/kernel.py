"""The kernel calls that Python has no name for.

They go through the C half of `ctypes`: importing its Python half costs as much as all of our own modules.
"""

from __future__ import annotations

import os
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 3, 4, 36
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # on every architecture
# Making character devices, which nobody here may anyway: a ruleset must be about something.
_LANDLOCK_DEVICES = (1 << 6).to_bytes(8, "little")
_LANDLOCK_NO_NETWORK_RULES = bytes(8)
_LANDLOCK_SCOPED = (3).to_bytes(8, "little")  # abstract sockets and signals stay within


class _Int(_SimpleCData):  # type: ignore[type-arg]  # generic only for the type checker
    _type_ = "i"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_libc = dlopen(None, os.RTLD_NOW)  # type: ignore[arg-type]  # None is this program itself
_prctl = _Function(dlsym(_libc, "prctl"))
_syscall = _Function(dlsym(_libc, "syscall"))


def set_dumpable(dumpable: bool) -> None:
    """Open or close this process to others of the same user: its memory, its environment and its open files.

    While it is closed, a tool cannot forge our answers by writing to `/proc/<server>/fd/1`.
    """
    _prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)


def is_dumpable() -> bool:
    return bool(_prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 1)


def has_no_new_privileges() -> bool:
    """Asked of the kernel, for not every kernel has a line about it in /proc."""
    return bool(_prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)


def become_subreaper() -> None:
    """Become the parent of every orphan below: a process that daemonised is still ours to find and reap."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def landlock_version() -> int:
    """Return which Landlock the kernel has, or 0 for none."""
    return max(0, int(_syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)))


def leave_for_good() -> None:
    """Cut this process and all it will start off from every other process, as far as the kernel can.

    It cannot open their files in /proc then, nor signal them. That keeps a tool from the server, and from the
    first process of the container, which holds the same standard output: who could open that could answer
    in the server's name.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The second is what kernels before 6.12 know; those before 5.13 know neither.
    for attributes in (
        _LANDLOCK_DEVICES + _LANDLOCK_NO_NETWORK_RULES + _LANDLOCK_SCOPED,
        _LANDLOCK_DEVICES,
    ):
        ruleset = _syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
        if ruleset >= 0:
            _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)
            return


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make the raw system call. Returns 0 when it succeeded, else the error number."""
    return get_errno() if _syscall(number, *arguments) == -1 else 0
