"""A container engine for the tests: the one that answers, or a private one that lives as long as the run.

The private one is run by `engine_keeper.py`, a program of its own, and ends even when the run is killed.
"""

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mcp_orchestrator.sandbox.backend import BackendUnavailable
from mcp_orchestrator.sandbox.docker.engine import connect
from tests.support import engine_keeper
from tests.support.waiting import outcome_of

START_SECONDS = 60  # Two cores took 0.2; the rest is for a machine that has a lot else to do.
STOP_SECONDS = 30
INSTALL_SECONDS = 600


class EngineUnavailable(Exception):
    """No engine answers and none can be started; the message says what to do."""


@contextlib.contextmanager
def available_engine() -> Iterator[str]:
    """The address of an engine: the person's own if one answers, else a private one.

    Raises:
        EngineUnavailable: neither works here.
    """

    async def answering() -> str:
        docker, endpoint = await connect()
        await docker.close()
        return endpoint.url

    try:
        host = outcome_of(answering())
    except BackendUnavailable as nothing:
        _install_engine(str(nothing))
        with private_engine() as host:
            yield host
    else:
        yield host


@contextlib.contextmanager
def private_engine() -> Iterator[str]:
    """Start an engine that shares nothing with any other, and leave no trace of it."""
    # Not TMPDIR: the path of a Unix socket holds 107 characters and the engine adds its own.
    folder = Path(tempfile.mkdtemp(prefix="mcpo-engine-", dir="/tmp"))
    with (folder / "log").open("a+b") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", engine_keeper.__file__, folder],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests; the keeper hears of it by the pipe.
        )
        assert keeper.stdin
        try:
            _await_answer(folder / "docker.sock", keeper, log)
            yield f"unix://{folder}/docker.sock"
        finally:
            keeper.stdin.close()
            keeper.wait(timeout=STOP_SECONDS)


def _install_engine(why: str) -> None:
    if shutil.which("dockerd", path=engine_keeper.PATH):
        if os.geteuid() == 0:
            return
    elif os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", "docker.io", "mount")
        # gVisor is a second opinion, not a need: many releases do not carry it.
        with contextlib.suppress(EngineUnavailable):
            _apt_get("install", "--yes", "--no-install-recommends", "runsc")
        return
    raise EngineUnavailable(f"{why} Or run the tests as root on Debian, where they start one of their own.")


def _apt_get(*arguments: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "--quiet=2", *arguments]
    try:
        subprocess.run(command, env=environment, check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailable(f"{' '.join(command)} failed: {error}") from error


def _await_answer(engine: Path, keeper: "subprocess.Popen[bytes]", log: BinaryIO) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(engine):
        if keeper.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            last_words = log.read().decode(errors="replace").splitlines()[-5:]
            raise EngineUnavailable(
                "\n".join(["A private dockerd did not start. Its last words:", *last_words])
            )
        time.sleep(0.05)  # The engine announces itself by answering, and by nothing else.


def _answers(path: Path) -> bool:
    connection = http.client.HTTPConnection("localhost", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(2)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
