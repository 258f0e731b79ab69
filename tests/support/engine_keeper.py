"""The program that runs a private engine for the tests, and takes it down when their run is over.

It stands alone, because it must outlive the run that started it. It watches a pipe whose other end only that
run holds: however the run ends, `kill -9` included, the pipe closes and the engine goes with all it made,
processes, mounts, cgroups and files.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# Where dockerd is, also for a root whose PATH is an ordinary user's.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def keep(folder: Path) -> None:
    """Run a private engine in `folder` until the pipe at standard input closes, then remove it whole."""
    _adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Only the end of the run ends the engine.
    daemon = subprocess.Popen(_command(folder), stdin=subprocess.DEVNULL, env=os.environ | {"PATH": PATH})
    select.select([sys.stdin, os.pidfd_open(daemon.pid)], [], [])  # until the run ends, or the engine does
    # No goodbye: an orderly stop takes 10 seconds for each container and keeps nothing that anyone will read.
    cgroups = _Cgroups(folder.name)
    _kill_descendants(cgroups)
    cgroups.remove()
    shutil.rmtree(folder, ignore_errors=True)


def _command(folder: Path) -> list[str]:
    (folder / "daemon.json").write_text(json.dumps(_options(folder)))
    # Mounts, a /run and a network of its own. What the engine mounts, and the sockets it and its containerd
    # put into /run, end with the last of its processes; and it cannot touch the host's bridges and firewall,
    # which even an engine told to use no bridge does: it deletes the one of the engine next door.
    script = f'mount -t tmpfs tmpfs /run && exec dockerd --config-file "{folder}/daemon.json"'
    return ["unshare", "--mount", "--net", "sh", "-c", script]


def _options(folder: Path) -> dict[str, object]:
    runsc = shutil.which("runsc", path=PATH)
    return {
        "hosts": [f"unix://{folder}/docker.sock"],
        "data-root": f"{folder}/data",
        "exec-root": f"{folder}/exec",
        "pidfile": f"{folder}/pid",
        # A cgroup of our own, so that what a killed engine leaves there can be told from others' and removed.
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{folder.name}",
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        # Its own network stack finds no interface in a container without a network, and refuses to start.
        "runtimes": {"runsc": {"path": runsc, "runtimeArgs": ["--network=none"]}} if runsc else {},
    }


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies: containers outlive their engine."""
    set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _kill_descendants(cgroups: "_Cgroups") -> None:
    """Kill level after level: the children of what dies become ours."""
    while True:
        for child in Path("/proc/thread-self/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        cgroups.thaw()
        try:
            os.wait()
        except ChildProcessError:
            return


class _Cgroups:
    """The control groups of the engine's containers, in version 2 and in each hierarchy of version 1."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        self._tops = [*root.glob(name), *root.glob(f"*/{name}")]

    def thaw(self) -> None:
        """Let paused processes go on: in version 1 they do not even die before that."""
        for top in self._tops:
            for state in top.glob("**/freezer.state"):
                with contextlib.suppress(OSError):
                    state.write_text("THAWED")

    def remove(self) -> None:
        for top in self._tops:
            for group in sorted(top.glob("**/"), reverse=True):  # the innermost first
                with contextlib.suppress(OSError):
                    group.rmdir()


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
