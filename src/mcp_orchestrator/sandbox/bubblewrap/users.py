"""Who a sandbox is on this host: never root, and nobody who owns anything.

When we are root, each sandbox gets a user of its own from a range that no system hands
out: 0x70000000 to 0x70FFFFFF, above systemd's containers (0x6FFFFFFF) and below its
foreign range (0x7FFE0000). Inside a container that has only 65536 users it is 50000
to 58999. An ordinary user cannot become another, and stays who they are.
"""

import pwd
import secrets
from pathlib import Path

from mcp_orchestrator.sandbox.backend import BackendUnavailable

RANGES = (range(0x7000_0000, 0x7100_0000), range(50_000, 59_000))


def unused_uid() -> int:
    """A user that does not exist, for one sandbox. May ask the system's user database.

    Raises:
        BackendUnavailable: we are root of a container that has too few users.
    """
    candidates = uid_range(Path("/proc/self/uid_map").read_text())
    while True:
        uid = candidates[secrets.randbelow(len(candidates))]
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid


def uid_range(uid_map: str) -> range:
    """The first of our ranges that exists here, by /proc/self/uid_map."""
    mapped = [(int(first), int(count)) for first, _, count in (line.split() for line in uid_map.splitlines())]
    for wanted in RANGES:
        if any(first <= wanted.start and wanted.stop <= first + count for first, count in mapped):
            return wanted
    raise BackendUnavailable(
        "We are root, but of a user namespace with too few users to give one to each sandbox. "
        "Start as an ordinary user."
    )
