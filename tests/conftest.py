"""What every test may use: an engine, the sandbox image, and names that belong to this run alone.

Whatever a test leaves behind, a container, a process, a mount or a cgroup, fails the run.
"""

import itertools
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiodocker import Docker

from scripts.build_image import build_sandbox_image
from tests.support import leftovers
from tests.support.engine import EngineUnavailable, available_engine
from tests.support.waiting import outcome_of
from tests.support.workshop import Kind, Workshop, open_workshop

RUN = f"test-{secrets.token_hex(3)}"
_numbers = itertools.count(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped: one line for each reason, however many tests it stopped."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(skipped).items():
        terminalreporter.write_line(f"{reason.removeprefix('Skipped: ')} ({count} skipped)")


@pytest.fixture
def instance() -> str:
    """An `INSTANCE_ID` that no other test and no other run has."""
    return f"{RUN}-{next(_numbers)}"


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_on_this_machine() -> Iterator[None]:
    yield
    assert leftovers.on_this_machine(RUN) == []


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """The address of a container engine, as in DOCKER_HOST."""
    try:
        with available_engine() as host:
            yield host
            assert outcome_of(leftovers.in_engine(host, RUN)) == []
    except EngineUnavailable as reason:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise  # There it can be had, so its absence is a failure.
        pytest.skip(f"Docker tests skipped: {reason}")


@pytest.fixture(scope="session")
def sandbox_image(engine: str) -> str:
    """The id of the sandbox image in that engine."""

    async def build() -> str:
        async with Docker(url=engine) as docker:
            return await build_sandbox_image(docker)

    return outcome_of(build())


KINDS: tuple[Kind, ...] = ("docker", "runsc", "bubblewrap")


@pytest.fixture(params=KINDS)
async def workshop(request: pytest.FixtureRequest, instance: str, tmp_path: Path) -> AsyncIterator[Workshop]:
    """Sandboxes of each kind that works here, removed at the end of the test."""
    kind: Kind = request.param
    host = image = ""
    if kind != "bubblewrap":
        host, image = request.getfixturevalue("engine"), request.getfixturevalue("sandbox_image")
    if kind == "runsc" and not request.getfixturevalue("engine_has_runsc"):
        pytest.skip("gVisor tests skipped: the engine has no runtime runsc; install the package runsc.")
    async with open_workshop(kind, instance, host, image, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def engine_has_runsc(engine: str) -> bool:
    async def ask() -> bool:
        async with Docker(url=engine) as docker:
            return "runsc" in ((await docker.system.info()).get("Runtimes") or {})

    return outcome_of(ask())
