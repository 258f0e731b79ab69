"""Names that two processes cannot both have, and what a dead one left under them.

A claim is a locked file. The kernel lets go of the lock when its holder dies, so a file
that can be locked belongs to nobody; what is written in it says what to clean up.
"""

import fcntl
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mcp_orchestrator.sandbox.backend import BackendUnavailable, SandboxConflict
from mcp_orchestrator.sandbox.bubblewrap.cgroups import NO_GROUPS, Hierarchy

SUFFIX = ".claim"


@dataclass(frozen=True)
class Remains:
    """What a sandbox may leave behind: control groups, and processes with its mark in their arguments."""

    groups: Hierarchy = NO_GROUPS
    mark: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a file whose writer may have died in the middle of it."""
        try:
            noted: dict[str, Any] = json.loads(text)
            parents = {name: Path(path) for name, path in noted["parents"].items()}
            return cls(Hierarchy(noted["version"], parents), noted["mark"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        parents = {name: str(path) for name, path in self.groups.parents.items()}
        return json.dumps({"version": self.groups.version, "parents": parents, "mark": self.mark})


class Claim:
    """One name, ours until it is released or we die."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, name: str) -> Self:
        """Claim a name.

        Raises:
            SandboxConflict: a living process has it.
        """
        path = directory / f"{name}{SUFFIX}"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise SandboxConflict(f"Sandbox '{name}' belongs to another living process.") from None
            if _is_same_file(descriptor, path):
                return cls(path, descriptor)
            # Its last holder removed the file between our opening and our locking it.
            os.close(descriptor)

    def remains(self) -> Remains:
        return Remains.parse(os.pread(self._descriptor, 65_536, 0).decode(errors="replace"))

    def note(self, remains: Remains) -> None:
        """Write down what has to be cleaned up if we die."""
        text = remains.text().encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def release(self) -> None:
        """Let others have the name. A second call does nothing."""
        if self._descriptor >= 0:
            # In this order: a file without a lock would look like one that was left behind.
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def make_runtime_dir(directory: Path) -> None:
    """For us alone: what is written there is obeyed.

    Raises:
        BackendUnavailable: it cannot be made, or others can write there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = directory.stat()
    except OSError as error:
        raise BackendUnavailable(f"{directory} cannot be used: {error.strerror}. Set DATA_DIR.") from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BackendUnavailable(f"Others can write to {directory}. Make it yours alone, or set DATA_DIR.")


def claimed_names(directory: Path) -> list[str]:
    """Every name that has a file, whoever holds it."""
    return sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
