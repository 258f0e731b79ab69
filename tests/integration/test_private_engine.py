"""The engine that the tests start for themselves: it must go with them, however they end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.engine_keeper import PATH
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
HOLDER = """
from tests.support.engine import private_engine
with private_engine() as host:
    print(host.removeprefix("unix://"), flush=True)
    input()
"""


def test_an_engine_whose_run_was_killed_goes_without_a_trace(engine: str) -> None:
    if os.geteuid() != 0 or not shutil.which("dockerd", path=PATH):
        pytest.skip("Private engine not tested: that takes root and dockerd.")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout
        folder = Path(run.stdout.readline().strip()).parent
        assert traces(folder.name)

        run.kill()

    wait_until(lambda: not traces(folder.name), seconds=20)


def traces(name: str) -> list[str]:
    """Everything on this machine that carries the name of an engine's folder."""
    processes = [
        str(process.pid)
        for process in psutil.process_iter(["cmdline"])
        if name in " ".join(process.info["cmdline"] or [])
    ]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    folders = [str(path) for path in Path("/tmp").glob(name)]
    return processes + mounts + cgroups + folders
