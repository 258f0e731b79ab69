"""Which system calls a sandbox may make: the one list behind both back ends.

Everything that is not named here fails with EPERM. The groups say what a call is
for; a call that only an administrator, a debugger or a container engine needs is
in none of them. Left out on purpose although ordinary programs know them, because
they fall back: io_uring and kernel AIO (a large surface), `vmsplice`, `sync` and
`syncfs` (they flush the host's disks; nothing in a sandbox lies on one), NUMA
placement, and everything that looks into another process (`ptrace`,
`process_vm_readv`, `pidfd_getfd`, `kcmp`).

A name that an architecture does not have is skipped there.
"""

import errno
import socket
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# The kernel reads these arguments as 32-bit integers, so the filter looks at the same half
# and at nothing else: the two must never differ on what a call asks for.
LOWER_HALF = 0xFFFF_FFFF


class Condition(NamedTuple):
    """Holds when the masked argument equals the value."""

    argument: int
    value: int
    mask: int = LOWER_HALF


class Rule(NamedTuple):
    """Allows calls if all conditions hold; with an errno it refuses them by that number."""

    names: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    errno: int = 0


ALWAYS_ALLOWED = {
    "opening and closing": """
        open openat openat2 creat close close_range dup dup2 dup3 fcntl flock memfd_create pipe pipe2
        umask""",
    "reading and writing": """
        read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile
        copy_file_range splice tee readahead fadvise64 cachestat""",
    "directories and names": """
        chdir fchdir getcwd getdents getdents64 mkdir mkdirat rmdir rename renameat renameat2 link linkat
        unlink unlinkat symlink symlinkat readlink readlinkat""",
    "what a file is": """
        stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 chmod fchmod fchmodat
        fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat truncate ftruncate
        fallocate getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr
        flistxattr removexattr lremovexattr fremovexattr""",
    "to disk": "fsync fdatasync sync_file_range",
    "waiting for files": """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
        epoll_pwait2 eventfd eventfd2 inotify_init inotify_init1 inotify_add_watch inotify_rm_watch""",
    "memory": """
        brk mmap munmap mremap mprotect madvise mincore msync mlock mlock2 munlock mlockall munlockall
        membarrier pkey_alloc pkey_free pkey_mprotect map_shadow_stack""",
    "processes": """
        fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp
        setpgid getsid setsid set_tid_address arch_prctl prctl pidfd_open""",
    "threads": """
        futex futex_waitv futex_wait futex_wake futex_requeue set_robust_list get_robust_list rseq""",
    "signals": """
        kill tkill tgkill pidfd_send_signal pause rt_sigaction rt_sigpending rt_sigprocmask
        rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd
        signalfd4 restart_syscall""",
    # Without capabilities these change nothing that was not the process's own already.
    "identity": """
        getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid
        setresuid setresgid setfsuid setfsgid capget capset""",
    "scheduling": """
        sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler
        sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min
        sched_rr_get_interval getpriority setpriority ioprio_get ioprio_set getcpu""",
    "usage and limits": "getrlimit setrlimit prlimit64 getrusage times sysinfo uname",
    "time": """
        time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer
        timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
        timerfd_gettime timerfd_settime""",
    "sockets, once made": """
        bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt sendto recvfrom
        sendmsg recvmsg sendmmsg recvmmsg shutdown""",
    # Own IPC namespace: nobody else's queues are in reach.
    "inter-process communication": """
        shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr""",
    "chance": "getrandom",
    "giving up more rights": "seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
}


def rules() -> list[Rule]:
    """The whole profile, in an order that never changes."""
    unconditional = [Rule(tuple(names.split())) for names in ALWAYS_ALLOWED.values()]
    conditional = (_new_processes, _new_sockets, _special_files, _terminals, _personality)
    return [*unconditional, *(rule for make in conditional for rule in make())]


def _new_processes() -> Iterator[Rule]:
    """A `clone` that makes no namespace."""
    every_namespace = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
    yield Rule(("clone",), (Condition(0, 0, mask=every_namespace),))
    # Its flags lie in memory, where no filter can look: the C library then uses clone.
    yield Rule(("clone3",), errno=errno.ENOSYS)


def _new_sockets() -> Iterator[Rule]:
    """Local sockets, TCP and UDP. Any other protocol could make the kernel load a module for it."""
    yield Rule(("socket", "socketpair"), (Condition(0, socket.AF_UNIX),))
    kind = 0xF  # the rest of the type are flags such as SOCK_CLOEXEC
    protocols = {socket.SOCK_STREAM: socket.IPPROTO_TCP, socket.SOCK_DGRAM: socket.IPPROTO_UDP}
    for family in (socket.AF_INET, socket.AF_INET6):
        for type_, protocol in protocols.items():
            for number in (0, protocol):
                exactly = (Condition(0, family), Condition(1, type_, kind), Condition(2, number))
                yield Rule(("socket",), exactly)


def _special_files() -> Iterator[Rule]:
    """Nodes that are no device."""
    kind = 0o170_000
    for mode in (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
        yield Rule(("mknod",), (Condition(1, mode, kind),))
        yield Rule(("mknodat",), (Condition(2, mode, kind),))


def _terminals() -> Iterator[Rule]:
    """Every `ioctl` but the two that put keystrokes into a terminal."""
    tiocsti, tioclinux = 0x5412, 0x541C
    for condition in _all_but(1, [tiocsti, tioclinux]):
        yield Rule(("ioctl",), (condition,))


def _personality() -> Iterator[Rule]:
    """Asking for the execution domain, and setting the one that is."""
    for domain in (0, 0xFFFF_FFFF):
        yield Rule(("personality",), (Condition(0, domain),))


def _all_but(
    argument: int, refused: Iterable[int], bit: int = 31, value: int = 0, mask: int = 0
) -> Iterator[Condition]:
    """Conditions of which one holds for each 32-bit value that is not refused.

    There is no masked "not equal", and an unmasked one is fooled by the upper half. So
    this walks the bits and yields each branch that holds no refused value.
    """
    refused = list(refused)
    if not refused:
        yield Condition(argument, value, mask)
    elif bit >= 0:
        for half in (0, 1 << bit):
            inside = [number for number in refused if number & (1 << bit) == half]
            yield from _all_but(argument, inside, bit - 1, value | half, mask | (1 << bit))
