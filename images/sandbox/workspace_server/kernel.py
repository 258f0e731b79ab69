"""The kernel calls that Python has no name for.

They go through the C half of `ctypes`: importing its Python half costs as much as all of our own modules.
"""

from __future__ import annotations

import os
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_GET_NO_NEW_PRIVS = 3, 4, 36, 39


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


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make the raw system call. Returns 0 when it succeeded, else the error number."""
    return get_errno() if _syscall(number, *arguments) == -1 else 0
