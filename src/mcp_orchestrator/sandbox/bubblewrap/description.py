"""What exactly is started: pure functions from a specification to argument lists.

Three programs follow each other in one process, then a fourth inside:

1. `LAUNCHER`, still with our rights, joins the control groups,
2. `setpriv`, only when we are root, becomes a user that owns nothing on this host,
3. `bwrap`, with an empty environment, makes the namespaces,
4. `GATE`, inside, reports that they are up and waits for our word before the server runs.

Values are arguments of the shell's constant text, never part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from mcp_orchestrator.sandbox.backend import SANDBOX_UID, SandboxLimits, SandboxSpec
from mcp_orchestrator.sandbox.bubblewrap.cgroups import ControlGroup

SERVER_DIRECTORY = "/opt/mcp/workspace_server"

# Our cgroup files come first, up to the `--`. A sandbox dies before its host's own processes when
# memory runs out. `env -i`: what the first process in the sandbox was given can be read there.
LAUNCHER = """set -e
cd "$1"; shift
while [ "$1" != -- ]; do echo $$ > "$1"; shift; done
shift
echo 500 > /proc/self/oom_score_adj
exec /usr/bin/env -i "$@"
"""

# The empty line is the report. Without an answer, because we died, nothing runs.
GATE = 'echo; read -r _ && exec "$@"'
GATE_REPORT = b"\n"
GATE_ANSWER = b"\n"

ENVIRONMENT = {
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}

# Names for the one user, and an address for itself: many programs fail without them.
ETC_FILES = {
    "/etc/passwd": f"sandbox:x:{SANDBOX_UID}:{SANDBOX_UID}::/workspace:/bin/sh\n".encode(),
    "/etc/group": f"sandbox:x:{SANDBOX_UID}:\n".encode(),
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
}


@dataclass(frozen=True)
class Host:
    """What a description needs to know of this machine.

    Attributes:
        links: Names in the root that are links into /usr, with their targets.
        binds: What of the host is shown, read-only: the path inside and the one outside.
        bwrap_directory: Where `bwrap` is started.
        bwrap: Its command.
        python: The interpreter of the workspace server, as seen inside.
        open_files: Our own hard limit, which nothing we start can exceed.
    """

    links: Mapping[str, str]
    binds: Mapping[str, str]
    bwrap_directory: str
    bwrap: tuple[str, ...]
    python: str
    open_files: int


@dataclass(frozen=True)
class Descriptors:
    """The numbers under which `bwrap` finds what we hand over."""

    arguments: int
    seccomp: int
    info: int
    files: Mapping[str, int]

    @property
    def all(self) -> tuple[int, ...]:
        return (self.arguments, self.seccomp, self.info, *self.files.values())


def launch_command(
    spec: SandboxSpec,
    host: Host,
    descriptors: Descriptors,
    *,
    mark: str,
    uid: int | None,
    group: ControlGroup | None,
) -> list[str]:
    """What we start. `uid` is None when we are an ordinary user and stay it.

    The mark is one of the arguments: by it what a dead process of ours left can be found.
    """
    joined = [str(path) for path in group.joining_files] if group else []
    controllers = group.controllers if group else frozenset()
    return [
        *("/bin/sh", "-c", LAUNCHER, "launcher", host.bwrap_directory, *joined, "--"),
        *([] if uid is None else _become(uid)),
        *(*host.bwrap, "--args", str(descriptors.arguments), "--"),
        *("/bin/sh", "-c", GATE, mark),
        *_resource_limits(spec.limits, host, controllers),
        *(spec.command or (host.python, "-I", "-S", SERVER_DIRECTORY)),
    ]


def bwrap_options(spec: SandboxSpec, host: Host, descriptors: Descriptors) -> list[str]:
    """What `bwrap` reads from a descriptor: on its command line everybody inside could see it."""
    return [
        *_isolation(descriptors),
        *_files(descriptors.files),
        *_system(host),
        *_writable_places(spec.limits),
        *("--remount-ro", "/", "--chdir", "/workspace", "--hostname", "sandbox"),
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
    ]


def _become(uid: int) -> list[str]:
    who = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["/usr/bin/setpriv", *who, "--inh-caps=-all", "--no-new-privs", "--"]


def _isolation(descriptors: Descriptors) -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *("--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID)),
        *("--cap-drop", "ALL", "--new-session", "--die-with-parent"),
        *("--seccomp", str(descriptors.seccomp), "--info-fd", str(descriptors.info)),
    ]


def _system(host: Host) -> list[str]:
    links = [word for name, target in host.links.items() for word in ("--symlink", target, name)]
    binds = [word for inside, outside in host.binds.items() for word in ("--ro-bind", outside, inside)]
    return [*links, *binds, "--proc", "/proc"]


def _files(files: Mapping[str, int]) -> list[str]:
    parents = dict.fromkeys(str(parent) for path in files for parent in reversed(PurePosixPath(path).parents))
    # Made first: bwrap would make them as closed as the files are.
    directories = [word for path in parents if path != "/" for word in ("--perms", "0755", "--dir", path)]
    contents = [("--perms", "0444", "--file", str(number), path) for path, number in files.items()]
    return [*directories, *(word for words in contents for word in words)]


def _writable_places(limits: SandboxLimits) -> list[str]:
    return [
        *("--dev", "/dev"),
        *("--perms", "1777", "--size", str(limits.shm_bytes), "--tmpfs", "/dev/shm"),  # noqa: S108
        # bwrap's /dev is a tmpfs without a bound.
        *("--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"),  # noqa: S108
        *("--perms", "0700", "--size", str(limits.workspace_bytes), "--tmpfs", "/workspace"),
    ]


def _resource_limits(limits: SandboxLimits, host: Host, grouped: frozenset[str]) -> list[str]:
    """What no controller holds. Set inside, where processes are counted apart from all others of the user."""
    options = {"nofile": min(limits.open_files, host.open_files), "core": 0, "fsize": limits.workspace_bytes}
    if "pids" not in grouped:
        options["nproc"] = limits.processes
    if "memory" not in grouped:
        # For each process alone. Not the address space: runtimes reserve more than they use.
        options["data"] = limits.memory_bytes
    return ["/usr/bin/prlimit", *(f"--{name}={value}:{value}" for name, value in options.items()), "--"]
