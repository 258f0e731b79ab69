"""The system call filter, run on paper: a small interpreter executes what we ship, for both machines."""

import errno
import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.seccomp import docker_profile, filter_program
from mcp_orchestrator.sandbox.seccomp.rules import rules

AUDIT = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
EPERM = 0x0005_0000 | errno.EPERM
ENOSYS = 0x0005_0000 | errno.ENOSYS
X32_BIT = 0x4000_0000

# Numbers of system calls as (x86_64, aarch64).
READ, OPENAT, EXECVE, FUTEX, STATX = (0, 63), (257, 56), (59, 221), (202, 98), (332, 291)
RSEQ, OPENAT2, PIDFD_OPEN, CLOSE_RANGE, GETRANDOM = (334, 293), (437, 437), (434, 434), (436, 436), (318, 278)
CLONE, CLONE3, UNSHARE, SETNS = (56, 220), (435, 435), (272, 97), (308, 268)
SOCKET, SOCKETPAIR, IOCTL, PERSONALITY, MKNODAT = (41, 198), (53, 199), (16, 29), (135, 92), (259, 33)
REFUSED = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "unshare": UNSHARE,
    "setns": SETNS,
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "quotactl": (179, 60),
    "kcmp": (312, 272),
    "fanotify_init": (300, 262),
    "acct": (163, 89),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "vhangup": (153, 58),
    "a call of the future": (1000, 1000),
}

machines = pytest.mark.parametrize("machine", list(AUDIT))
words = st.integers(min_value=0, max_value=2**64 - 1)


@machines
@pytest.mark.parametrize("name", list(REFUSED))
def test_a_call_that_no_ordinary_program_needs_is_refused(machine: str, name: str) -> None:
    assert verdict(machine, REFUSED[name]) == EPERM


@machines
def test_what_every_program_does_is_allowed(machine: str) -> None:
    calls = [READ, OPENAT, EXECVE, FUTEX, STATX, RSEQ, OPENAT2, PIDFD_OPEN, CLOSE_RANGE, GETRANDOM]
    assert {verdict(machine, call) for call in calls} == {ALLOW}


@machines
def test_another_architecture_kills_the_process(machine: str) -> None:
    others = [token for token in (*AUDIT.values(), 0x4000_0003, 0x4000_0028) if token != AUDIT[machine]]
    assert {verdict(machine, READ, arch=token) for token in others} == {KILL_PROCESS}


@given(number=st.integers(min_value=X32_BIT, max_value=2**32 - 2))
def test_an_x32_number_is_never_allowed(number: int) -> None:
    assert verdict("x86_64", (number, number)) == KILL_PROCESS


@machines
@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
def test_clone_makes_no_namespace_of_any_kind(machine: str, bit: int) -> None:
    assert verdict(machine, CLONE, 1 << bit | 17) == EPERM


@machines
@given(flags=words)
def test_clone_makes_no_namespace_whatever_the_upper_half_says(machine: str, flags: int) -> None:
    expected = EPERM if flags & 0x7E02_0000 else ALLOW
    assert verdict(machine, CLONE, flags) == expected


@machines
def test_threads_and_forks_are_allowed_and_clone3_asks_for_the_older_call(machine: str) -> None:
    pthread_create, fork = 0x003D_0F00, 0x0120_0011
    assert (verdict(machine, CLONE, pthread_create), verdict(machine, CLONE, fork)) == (ALLOW, ALLOW)
    assert verdict(machine, CLONE3) == ENOSYS


@machines
@pytest.mark.parametrize("family", range(64))
def test_only_local_and_internet_sockets_can_be_made(machine: str, family: int) -> None:
    unix, inet, inet6, stream, nonblocking_datagram = 1, 2, 10, 1, 2 | 0o4000
    for type_ in (stream, nonblocking_datagram):
        expected = ALLOW if family in (unix, inet, inet6) else EPERM
        assert verdict(machine, SOCKET, family, type_, 0) == expected
    assert verdict(machine, SOCKETPAIR, family, stream, 0) == (ALLOW if family == unix else EPERM)


@machines
@pytest.mark.parametrize(
    ("type_", "protocol"), [(3, 0), (3, 255), (1, 132), (5, 132), (6, 33), (1, 262), (2, 136)]
)
def test_an_internet_socket_is_tcp_or_udp_and_nothing_else(machine: str, type_: int, protocol: int) -> None:
    assert verdict(machine, SOCKET, 2, type_, protocol) == EPERM
    assert verdict(machine, SOCKET, 10, type_, protocol) == EPERM


@machines
@given(request=words)
def test_every_ioctl_works_but_those_that_type_into_a_terminal(machine: str, request: int) -> None:
    expected = EPERM if request & 0xFFFF_FFFF in (0x5412, 0x541C) else ALLOW
    assert verdict(machine, IOCTL, 0, request) == expected


@machines
@pytest.mark.parametrize("upper", [0, 1, 0xFFFF_FFFF])
def test_the_upper_half_of_an_argument_hides_no_keystroke(machine: str, upper: int) -> None:
    for request in (0x5412, 0x541C):
        assert verdict(machine, IOCTL, 0, upper << 32 | request) == EPERM
    assert verdict(machine, IOCTL, 0, upper << 32 | 0x5413) == ALLOW


@machines
def test_the_execution_domain_can_be_asked_for_but_not_changed(machine: str) -> None:
    no_randomization = 0x0004_0000
    assert verdict(machine, PERSONALITY, 0xFFFF_FFFF) == ALLOW
    assert verdict(machine, PERSONALITY, 0xFFFF_FFFF_FFFF_FFFF) == ALLOW, "the same, with its sign extended"
    assert verdict(machine, PERSONALITY, 0) == ALLOW
    assert verdict(machine, PERSONALITY, no_randomization) == EPERM


@machines
def test_a_fifo_can_be_made_but_no_device(machine: str) -> None:
    fifo, file, character, block = 0o010644, 0o100644, 0o020666, 0o060666
    assert {verdict(machine, MKNODAT, 0, 0, mode) for mode in (fifo, file, 0o644)} == {ALLOW}
    assert {verdict(machine, MKNODAT, 0, 0, mode) for mode in (character, block)} == {EPERM}


def test_a_machine_without_a_filter_is_told_so() -> None:
    with pytest.raises(BackendUnavailable, match="riscv64"):
        filter_program("riscv64")


def test_the_engine_gets_the_same_rules_and_no_second_architecture() -> None:
    profile = json.loads(docker_profile())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert all(entry["subArchitectures"] == [] for entry in profile["archMap"])
    assert [tuple(entry["names"]) for entry in profile["syscalls"]] == [rule.names for rule in rules()]
    refused = [entry for entry in profile["syscalls"] if entry["action"] != "SCMP_ACT_ALLOW"]
    assert [(entry["names"], entry["errnoRet"]) for entry in refused] == [(["clone3"], errno.ENOSYS)]


def test_no_call_is_named_twice_without_a_condition() -> None:
    names = [name for rule in rules() if not rule.conditions for name in rule.names]
    assert sorted(set(names)) == sorted(names)


@machines
def test_the_shipped_programs_are_what_the_rules_compile_to(machine: str) -> None:
    compiler = load_compiler()
    try:
        library = compiler.load()
    except OSError:
        pytest.skip("libseccomp is not installed: apt install libseccomp2")
    if compiler.version(library)[:2] != (2, 5):
        pytest.skip("the programs were compiled with libseccomp 2.5; another one may order them differently")
    assert compiler.compiled(library, machine) == filter_program(machine), "run scripts/compile_seccomp.py"


def verdict(machine: str, call: tuple[int, int], *arguments: int, arch: int | None = None) -> int:
    """What the kernel would do with a system call, by the program that we ship."""
    number = call[list(AUDIT).index(machine)]
    data = struct.pack("<IIQ6Q", number, arch or AUDIT[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    return run(filter_program(machine), data)


def run(program: bytes, data: bytes) -> int:
    """Execute the part of classic BPF that libseccomp emits."""
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, constant = code[position]
        position += 1
        match operation:
            case 0x20:  # load a word
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x54:  # and
                accumulator &= constant
            case 0x05:  # jump
                position += constant
            case 0x15:  # jump if equal
                position += if_true if accumulator == constant else if_false
            case 0x35:  # jump if greater or equal
                position += if_true if accumulator >= constant else if_false
            case 0x25:  # jump if greater
                position += if_true if accumulator > constant else if_false
            case 0x06:  # return
                return int(constant)
            case unknown:
                raise AssertionError(f"unknown instruction {unknown:#x}")


def load_compiler() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "compile_seccomp.py"
    specification = importlib.util.spec_from_file_location("compile_seccomp", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
