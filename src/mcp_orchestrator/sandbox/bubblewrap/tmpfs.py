"""A bound on the number of files in a sandbox's file systems, which bwrap cannot set.

Whoever has the rights over the user namespace that mounted a tmpfs may change it. Root has
them from outside. An ordinary user has them only in there, so this file is also a program:

    python -I -S tmpfs.py <pid> <path> <count> [<path> <count>...]
"""

import ctypes
import fcntl
import os
import sys
from pathlib import Path

# The same numbers on every architecture we run on.
FSPICK, FSCONFIG = 433, 431
AT_FDCWD, FSPICK_CLOEXEC = -100, 1
SET_STRING, RECONFIGURE = 1, 7
NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNS = 0x1000_0000, 0x0002_0000

libc = ctypes.CDLL(None, use_errno=True)


def limit_files(path: str, count: int) -> None:
    """Change a mounted tmpfs so that it holds no more files. Raises OSError if refused."""
    picked = _checked(libc.syscall(ctypes.c_long(FSPICK), AT_FDCWD, path.encode(), FSPICK_CLOEXEC))
    try:
        number = ctypes.c_long(FSCONFIG)
        _checked(libc.syscall(number, picked, SET_STRING, b"nr_inodes", str(count).encode(), 0))
        _checked(libc.syscall(number, picked, RECONFIGURE, None, None, 0))
    finally:
        os.close(picked)


def main(pid: str, *places: str) -> None:
    """Join the namespace of the mounts and, for the rights, the user namespace it belongs to."""
    with Path(f"/proc/{pid}/ns/mnt").open("rb") as mounts:
        owner = fcntl.ioctl(mounts, NS_GET_USERNS)
        _checked(libc.setns(owner, CLONE_NEWUSER))
        _checked(libc.setns(mounts.fileno(), CLONE_NEWNS))
    for path, count in zip(places[::2], places[1::2], strict=True):
        limit_files(path, int(count))


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
