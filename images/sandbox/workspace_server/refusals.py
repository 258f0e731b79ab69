"""Which dangerous system calls the sandbox refuses: each is tried, in a child that is thrown away."""

from __future__ import annotations

import errno
import os

from kernel import syscall

_CLONE_NEWUSER = 0x10000000
_ADDR_NO_RANDOMIZE = 0x0040000
_KEYCTL_GET_KEYRING_ID, _PROCESS_KEYRING = 0, -2
_UFFD_USER_MODE_ONLY = 1
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_SEQPACKET = 1, 2, 3, 5
# An array of one number (type 2, sizes 4 and 4, 1 entry): an invalid one fails before permission is asked.
_BPF_MAP = b"\2\0\0\0\4\0\0\0\4\0\0\0\1\0\0\0"
# The smallest perf_event_attr: a software counter (type 1, size 64), disabled, without kernel and hypervisor.
_PERF_COUNTER = b"\1\0\0\0\x40\0\0\0" + bytes(32) + b"\x61" + bytes(23)

_NUMBERS = {
    "x86_64": {
        "socket": 41, "ptrace": 101, "personality": 135, "mount": 165, "keyctl": 250, "unshare": 272,
        "perf_event_open": 298, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
    },
    "aarch64": {
        "socket": 198, "ptrace": 117, "personality": 92, "mount": 40, "keyctl": 219, "unshare": 97,
        "perf_event_open": 241, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425,
    },
}  # fmt: skip

# In this order: the last two change the process that makes them. What is let through either fails for another
# reason than permission (a null pointer, an unknown file system) or makes something that goes with the child.
_TRIES: dict[str, tuple[str, tuple[int | bytes | None, ...]]] = {
    "af_vsock": ("socket", (40, _SOCK_STREAM, 0)),
    "af_netlink": ("socket", (16, _SOCK_RAW, 0)),
    "af_packet": ("socket", (17, _SOCK_DGRAM, 0)),
    "af_alg": ("socket", (38, _SOCK_SEQPACKET, 0)),
    "io_uring": ("io_uring_setup", (1, None)),
    "keyctl": ("keyctl", (_KEYCTL_GET_KEYRING_ID, _PROCESS_KEYRING, 0)),
    "bpf": ("bpf", (0, _BPF_MAP, len(_BPF_MAP))),
    "perf_event_open": ("perf_event_open", (_PERF_COUNTER, 0, -1, -1, 0)),
    "userfaultfd": ("userfaultfd", (_UFFD_USER_MODE_ONLY,)),
    "mount": ("mount", (b"none", b"/", b"no-such-file-system", 0, None)),
    "personality": ("personality", (_ADDR_NO_RANDOMIZE,)),
    "user_namespace": ("unshare", (_CLONE_NEWUSER,)),
    "ptrace": ("ptrace", (0, 0, 0, 0)),  # PTRACE_TRACEME
}

_REFUSED, _ALLOWED = b"r", b"a"
_REFUSALS = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EAFNOSUPPORT,
    errno.EPROTONOSUPPORT,
    errno.ESOCKTNOSUPPORT,
)


def refused_calls() -> dict[str, bool | None]:
    """Return for each call whether it is refused; None on a processor whose call numbers we do not know."""
    numbers = _NUMBERS.get(os.uname().machine)
    if numbers is None:
        return dict.fromkeys(_TRIES)
    waiting = list(_TRIES)
    refused: dict[str, bool | None] = {}
    while waiting:
        answers = _try_in_a_child(waiting, numbers)
        if len(answers) < len(waiting):
            answers += _REFUSED  # the child was killed for the next one: that is a refusal too
        for position, answer in enumerate(answers):
            refused[waiting[position]] = answer == _REFUSED[0]
        del waiting[: len(answers)]
    return refused


def _try_in_a_child(names: list[str], numbers: dict[str, int]) -> bytes:
    """Return one byte for each call that was tried before the child ended."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for name in names:
                call, arguments = _TRIES[name]
                is_refused = syscall(numbers[call], *arguments) in _REFUSALS
                os.write(write_end, _REFUSED if is_refused else _ALLOWED)
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    answers = os.read(read_end, len(names))
    os.close(read_end)
    return answers
