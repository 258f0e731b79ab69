"""Control groups: limits over all processes of a sandbox together, in either version.

A group lies below the group we are in ourselves, so what limits us limits our sandboxes
too. Version 1 has a directory for each controller and needs root. Version 2 has one
directory and works for everybody to whom a part of the tree was handed over, as systemd
does for a user's own services.

Everything here is small files, so all of it is tested on an ordinary directory tree.
"""

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mcp_orchestrator.sandbox.backend import SandboxConflict, SandboxLimits

CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")
PERIOD_MICROSECONDS = 100_000

# Version 2 allows no processes beside groups with controllers: we go there ourselves.
OWN_LEAF = "mcp-orchestrator"


class Usage(NamedTuple):
    """What a group uses now."""

    cpu_seconds: float
    memory_bytes: int
    processes: int


class ControlGroup(ABC):
    """The group of one sandbox."""

    controllers: frozenset[str]
    """Which of `CONTROLLERS` do their work here."""

    @property
    @abstractmethod
    def directories(self) -> tuple[Path, ...]:
        """All that makes up the group."""

    @abstractmethod
    def limit(self, limits: SandboxLimits) -> None:
        """Write the limits down. Raises OSError if one is refused."""

    @abstractmethod
    def limits(self) -> dict[str, str]:
        """The limits as they are in force, by controller."""

    @abstractmethod
    def expected(self, limits: SandboxLimits) -> dict[str, str]:
        """What `limits` answers when these are in force."""

    @abstractmethod
    def freeze(self, frozen: bool) -> None:
        """Begin to stop all processes, or let them go on."""

    @property
    @abstractmethod
    def is_frozen(self) -> bool:
        """Whether all processes have stopped."""

    @abstractmethod
    def usage(self) -> Usage: ...

    @property
    @abstractmethod
    def has_run_out_of_memory(self) -> bool:
        """Whether any process was killed for it."""

    @property
    def joining_files(self) -> tuple[Path, ...]:
        """Where a process writes its number to get in."""
        return tuple(directory / "cgroup.procs" for directory in self.directories)

    def make(self) -> None:
        """Make the directories.

        Raises:
            SandboxConflict: some process is in there.
        """
        for directory in self.directories:
            directory.mkdir(exist_ok=True)
        if self.members():
            raise SandboxConflict(f"Processes of another sandbox are in {self.directories[0]}.")

    def members(self) -> list[int]:
        return [int(number) for path in self.joining_files for number in _read(path).split()]

    def kill(self) -> None:
        """Tell every process to end; those it makes meanwhile are found by the next call."""
        for pid in set(self.members()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if "freezer" in self.controllers and self.members():
            self.freeze(False)

    def remove(self) -> bool:
        """Whether it is gone; it stays while a process is in it."""
        for directory in self.directories:
            with contextlib.suppress(FileNotFoundError, OSError):
                directory.rmdir()
        return not any(directory.exists() for directory in self.directories)


class FirstVersion(ControlGroup):
    """A directory for each controller; some of them may be the same one."""

    def __init__(self, by_controller: Mapping[str, Path]) -> None:
        self._at = by_controller
        self.controllers = frozenset(by_controller)

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._at.values()))

    def limit(self, limits: SandboxLimits) -> None:
        if memory := self._at.get("memory"):
            (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
            # Memory and swap together, so that no swap is left. After the one above: it may not be less.
            _write_if_there(memory / "memory.memsw.limit_in_bytes", str(limits.memory_bytes))
            _write_if_there(memory / "memory.swappiness", "0")
        if pids := self._at.get("pids"):
            (pids / "pids.max").write_text(str(limits.processes))
        if cpu := self._at.get("cpu"):
            (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (cpu / "cpu.cfs_quota_us").write_text(str(_quota(limits)))

    def limits(self) -> dict[str, str]:
        files = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}
        return {
            name: _read(self._at[name] / file).strip() for name, file in files.items() if name in self._at
        }

    def expected(self, limits: SandboxLimits) -> dict[str, str]:
        values = {"memory": _whole_pages(limits), "pids": limits.processes, "cpu": _quota(limits)}
        return {name: str(value) for name, value in values.items() if name in self._at}

    def freeze(self, frozen: bool) -> None:
        (self._at["freezer"] / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    @property
    def is_frozen(self) -> bool:
        return "freezer" in self._at and _read(self._at["freezer"] / "freezer.state").strip() == "FROZEN"

    def usage(self) -> Usage:
        return Usage(
            cpu_seconds=self._number("cpuacct", "cpuacct.usage") / 1e9,
            memory_bytes=self._number("memory", "memory.usage_in_bytes"),
            processes=self._number("pids", "pids.current"),
        )

    @property
    def has_run_out_of_memory(self) -> bool:
        return "memory" in self._at and _count(self._at["memory"] / "memory.oom_control", "oom_kill") > 0

    def _number(self, controller: str, file: str) -> int:
        return int(_read(self._at[controller] / file) or 0) if controller in self._at else 0


class SecondVersion(ControlGroup):
    """One directory. Freezing and counting of time need no controller there."""

    def __init__(self, directory: Path, controllers: frozenset[str]) -> None:
        self._at = directory
        self.controllers = controllers | {"freezer", "cpuacct"}

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self._at,)

    def limit(self, limits: SandboxLimits) -> None:
        if "memory" in self.controllers:
            (self._at / "memory.max").write_text(str(limits.memory_bytes))
            _write_if_there(self._at / "memory.swap.max", "0")
            # A tool that takes too much must not take the server with it.
            _write_if_there(self._at / "memory.oom.group", "0")
        if "pids" in self.controllers:
            (self._at / "pids.max").write_text(str(limits.processes))
        if "cpu" in self.controllers:
            (self._at / "cpu.max").write_text(f"{_quota(limits)} {PERIOD_MICROSECONDS}")

    def limits(self) -> dict[str, str]:
        files = {name: f"{name}.max" for name in ("memory", "pids", "cpu") if name in self.controllers}
        return {name: _read(self._at / file).strip() for name, file in files.items()}

    def expected(self, limits: SandboxLimits) -> dict[str, str]:
        cpu = f"{_quota(limits)} {PERIOD_MICROSECONDS}"
        values = {"memory": str(_whole_pages(limits)), "pids": str(limits.processes), "cpu": cpu}
        return {name: value for name, value in values.items() if name in self.controllers}

    def freeze(self, frozen: bool) -> None:
        (self._at / "cgroup.freeze").write_text("1" if frozen else "0")

    @property
    def is_frozen(self) -> bool:
        return _count(self._at / "cgroup.events", "frozen") == 1

    def usage(self) -> Usage:
        return Usage(
            cpu_seconds=_count(self._at / "cpu.stat", "usage_usec") / 1e6,
            memory_bytes=int(_read(self._at / "memory.current") or 0),
            processes=int(_read(self._at / "pids.current") or 0),
        )

    @property
    def has_run_out_of_memory(self) -> bool:
        return _count(self._at / "memory.events", "oom_kill") > 0


@dataclass(frozen=True)
class Hierarchy:
    """Where groups can be made: a parent directory for each usable controller."""

    version: int
    parents: Mapping[str, Path]

    def group(self, name: str) -> ControlGroup:
        """The group of that name, made or not."""
        if self.version == 1:
            return FirstVersion({controller: path / name for controller, path in self.parents.items()})
        return SecondVersion(next(iter(self.parents.values())) / name, frozenset(self.parents))

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self.parents)


NO_GROUPS = Hierarchy(version=0, parents={})


class _Mount(NamedTuple):
    root: str
    point: Path
    kind: str
    options: frozenset[str]


def own_hierarchy() -> Hierarchy:
    """The groups that this process may make on this machine."""
    return find_hierarchy(_read(Path("/proc/self/cgroup")), _read(Path("/proc/self/mountinfo")))


def find_hierarchy(own: str, mounts: str) -> Hierarchy:
    """The groups that we may make, by /proc/self/cgroup and /proc/self/mountinfo.

    In a mixed system a controller belongs to either version; the one that has memory counts.
    """
    places = _own_places(own)
    parsed = list(_parse_mounts(mounts))
    for mount in parsed:
        if mount.kind == "cgroup2" and "" in places:
            found = _delegated(_inside(mount, places[""]), mount.point)
            if found:
                return found
    # The same tree may be mounted again elsewhere, for a container: the first mount is the system's.
    parents = {
        controller: _inside(mount, places[controller])
        for mount in reversed(parsed)
        for controller in CONTROLLERS
        if mount.kind == "cgroup" and controller in mount.options and controller in places
    }
    usable = {name: path for name, path in sorted(parents.items()) if os.access(path, os.W_OK | os.X_OK)}
    return Hierarchy(1, usable) if "memory" in usable or "pids" in usable else NO_GROUPS


def _delegated(own: Path, top: Path) -> Hierarchy | None:
    """The nearest group from ours upwards that was handed over to us with controllers."""
    if own.name == OWN_LEAF:
        own = own.parent  # we went in there ourselves, for the sake of this one
    for directory in (own, *own.parents):
        if not directory.is_relative_to(top):
            break
        available = set(_read(directory / "cgroup.controllers").split()) & set(CONTROLLERS)
        if "memory" in available and _may_make_groups(directory):
            enabled = _enable(directory, available)
            if "memory" in enabled:
                return Hierarchy(2, dict.fromkeys(sorted(enabled), directory))
    return None


def _may_make_groups(directory: Path) -> bool:
    return os.access(directory, os.W_OK) and os.access(directory / "cgroup.procs", os.W_OK)


def _enable(directory: Path, wanted: set[str]) -> set[str]:
    """Those controllers that groups in here get, after asking for them."""
    control = directory / "cgroup.subtree_control"
    if not wanted <= set(_read(control).split()):
        with contextlib.suppress(OSError):
            _make_room(directory)
            control.write_text(" ".join(f"+{name}" for name in sorted(wanted)))
    return wanted & {name.lstrip("+") for name in _read(control).split()}


def _make_room(directory: Path) -> None:
    """Go into a leaf if we are alone here; never move a process that is not ours."""
    if _read(directory / "cgroup.procs").split() == [str(os.getpid())]:
        leaf = directory / OWN_LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))


def _own_places(own: str) -> dict[str, str]:
    """Our path by controller; the empty name is version 2."""
    places = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        places.update(dict.fromkeys(controllers.split(","), path))
    return places


def _parse_mounts(mounts: str) -> Iterator[_Mount]:
    for line in mounts.splitlines():
        mounted, _, described = line.partition(" - ")
        kind, _, options = described.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = mounted.split()[3:5]
            yield _Mount(root, Path(point), kind, frozenset(options.split(",")))


def _inside(mount: _Mount, place: str) -> Path:
    """Where a place is seen; a container may have only its own part of the tree mounted."""
    root = mount.root.rstrip("/")
    inside = place.removeprefix(root) if place == root or place.startswith(f"{root}/") else "/"
    return mount.point / inside.strip("/")


def _quota(limits: SandboxLimits) -> int:
    return int(limits.cpus * PERIOD_MICROSECONDS)


def _whole_pages(limits: SandboxLimits) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    return limits.memory_bytes // page * page


def _read(path: Path) -> str:
    """What is in a file, or nothing: groups and files of theirs may vanish at any time."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _write_if_there(path: Path, value: str) -> None:
    if path.exists():
        path.write_text(value)


def _count(path: Path, name: str) -> int:
    """A number from a file of lines `name number`."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
