"""A program of its own: run a command in the namespaces of a sandbox, as caged as what runs there.

    python -I -S enter.py <pidfd> <uid> <filter file> <file size> [<cgroup.procs>...] -- <command>...

It is started with our rights and gives them up step by step: it opens the control groups,
becomes the sandbox's user on this host (a uid below zero means it is already), joins the
namespaces in one call, and then forks, because only a child lives in the new pid namespace.
That child joins the groups: one that is full lets nobody be born in it, but lets them in.
"""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
SECCOMP_MODE_FILTER = 2
LAST_CAPABILITY = 63
# Not a number that tar ends with.
COULD_NOT_ENTER = 125

# CLONE_NEWUSER, NEWNS, NEWPID, NEWIPC, NEWUTS, NEWNET, NEWCGROUP. In one call: the others belong
# to an outer user namespace, where one has no rights any more once the inner one is joined.
EVERY_NAMESPACE = 0x7E02_0000

libc = ctypes.CDLL(None, use_errno=True)


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def main(arguments: list[str]) -> int:
    separator = arguments.index("--")
    pidfd, uid, filter_file, file_size, *groups = arguments[:separator]
    program = Path(filter_file).read_bytes()
    # Processes in there must not look into this one, nor at the interpreter behind it.
    _call(libc.prctl, PR_SET_DUMPABLE, 0, 0, 0, 0)
    joining = [os.open(group, os.O_WRONLY) for group in groups]
    _become(int(uid))
    _call(libc.setns, int(pidfd), EVERY_NAMESPACE)
    os.close(int(pidfd))
    child = os.fork()
    if child == 0:
        _run(arguments[separator + 1 :], joining, program, int(file_size))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256


def _become(uid: int) -> None:
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # A change of user allows looking into it again on some kernels.
        _call(libc.prctl, PR_SET_DUMPABLE, 0, 0, 0, 0)


def _run(command: list[str], joining: list[int], program: bytes, file_size: int) -> None:
    try:
        for group in joining:
            os.write(group, b"0")  # whoever writes it
        _call(libc.prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for capability in range(LAST_CAPABILITY + 1):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        os.chdir("/")
        _call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        described = FilterProgram(len(program) // 8, program)
        _call(libc.prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0)
        os.execve(command[0], command, {"LANG": "C.UTF-8"})  # noqa: S606
    except BaseException as error:
        # The child must end here, whatever happens: it is a copy of its parent.
        os.write(2, f"{error}\n".encode())
        os._exit(COULD_NOT_ENTER)


def _call(function: "ctypes._NamedFuncPointer", *arguments: object) -> None:
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(COULD_NOT_ENTER)
