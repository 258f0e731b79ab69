"""Compile the system call rules for bubblewrap: run it after every change of them.

Needs libseccomp 2.5 (Debian: libseccomp2). What it writes is committed.
"""

import ctypes
import os
from pathlib import Path
from tempfile import TemporaryFile

from mcp_orchestrator.sandbox import seccomp
from mcp_orchestrator.sandbox.seccomp.rules import Rule, rules

# Numbers of libseccomp's interface, from seccomp.h.
ALLOW = 0x7FFF_0000
ERRNO = 0x0005_0000
KILL_PROCESS = 0x8000_0000
MASKED_EQUAL = 7
ATTRIBUTE_BAD_ARCHITECTURE = 2
ATTRIBUTE_OPTIMIZE = 8
BINARY_TREE = 2
TOKENS = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


class Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def main() -> None:
    library = load()
    for machine in seccomp.ARCHITECTURES:
        path = Path(seccomp.__file__).parent / f"{machine}.bpf"
        path.write_bytes(compiled(library, machine))


def load() -> ctypes.CDLL:
    """libseccomp, or OSError where it is not installed."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    return library


def version(library: ctypes.CDLL) -> tuple[int, int, int]:
    library.seccomp_version.restype = ctypes.POINTER(ctypes.c_uint * 3)
    major, minor, micro = library.seccomp_version().contents
    return major, minor, micro


def compiled(library: ctypes.CDLL, machine: str) -> bytes:
    """The BPF program for one machine. Other architectures, x32 included, kill the process."""
    context = ctypes.c_void_p(library.seccomp_init(ERRNO | 1))
    for name, token in TOKENS.items():
        change = library.seccomp_arch_add if name == machine else library.seccomp_arch_remove
        change(context, ctypes.c_uint32(token))
    _check(library.seccomp_attr_set(context, ATTRIBUTE_BAD_ARCHITECTURE, ctypes.c_uint32(KILL_PROCESS)))
    _check(library.seccomp_attr_set(context, ATTRIBUTE_OPTIMIZE, ctypes.c_uint32(BINARY_TREE)))
    for rule in rules():
        _add(library, context, TOKENS[machine], rule)
    try:
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _add(library: ctypes.CDLL, context: ctypes.c_void_p, token: int, rule: Rule) -> None:
    action = ctypes.c_uint32(ERRNO | rule.errno if rule.errno else ALLOW)
    comparisons = [
        Comparison(argument, MASKED_EQUAL, mask, value) for argument, value, mask in rule.conditions
    ]
    array = (Comparison * len(comparisons))(*comparisons)
    for name in rule.names:
        # Below zero are the numbers of calls that only other architectures have.
        if library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), name.encode()) >= 0:
            # A rule names a call by its number on this machine, whatever it is compiled for.
            number = library.seccomp_syscall_resolve_name(name.encode())
            _check(library.seccomp_rule_add_array(context, action, number, len(comparisons), array))


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    with TemporaryFile() as file:
        _check(library.seccomp_export_bpf(context, file.fileno()))
        file.seek(0)
        return file.read()


def _check(answer: int) -> None:
    if answer < 0:
        raise OSError(-answer, f"libseccomp: {os.strerror(-answer)}")


if __name__ == "__main__":
    main()
