"""Starting a sandbox: hand everything to bwrap, wait at the gate, finish it from outside, open the gate."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from mcp_orchestrator.sandbox import seccomp
from mcp_orchestrator.sandbox.backend import SandboxFailed, SandboxLimits, SandboxSpec
from mcp_orchestrator.sandbox.bubblewrap import procfs, tmpfs
from mcp_orchestrator.sandbox.bubblewrap.cgroups import ControlGroup
from mcp_orchestrator.sandbox.bubblewrap.description import (
    GATE_ANSWER,
    GATE_REPORT,
    Descriptors,
    bwrap_options,
    launch_command,
)
from mcp_orchestrator.sandbox.bubblewrap.process import Process
from mcp_orchestrator.sandbox.bubblewrap.program import Programs
from mcp_orchestrator.sandbox.cleanup import finish

logger = logging.getLogger(__name__)

# Some ten milliseconds on an idle machine.
START_SECONDS = 20
# Nearly always at the first glance.
GLANCE_SECONDS = 0.001
STDERR_BYTES = 500


class Launched(NamedTuple):
    """A sandbox whose server runs: our process, and its first one as numbered here.

    A number may be given to another process one day; a pidfd cannot.
    """

    process: Process
    init: int
    init_pidfd: int


async def launch(
    spec: SandboxSpec, programs: Programs, mark: str, uid: int | None, group: ControlGroup | None
) -> Launched:
    """Start the server of a sandbox, after all that holds it shut is in place.

    The mark is in the arguments of its bwrap processes and of no other.

    Raises:
        SandboxFailed: it could not be made. No process is left, also when cancelled.
    """
    with _descriptors(programs) as (descriptors, report):
        options = bwrap_options(spec, programs.host, descriptors)
        _fill(descriptors.arguments, b"".join(word.encode() + b"\0" for word in options))
        command = launch_command(spec, programs.host, descriptors, mark=mark, uid=uid, group=group)
        process = Process(spec.name, command, descriptors.all)
    try:
        async with asyncio.timeout(START_SECONDS):
            await _reach_gate(spec.name, process)
            init = int(json.loads(os.read(report, 4096))["child-pid"])
            await _bound_to_us(init)
            await _limit_files(init, spec.limits)
            # While the gate is shut it cannot have ended.
            init_pidfd = os.pidfd_open(init)
            await _open_gate(process, init_pidfd)
    except BaseException as error:
        await finish(process.end())
        if isinstance(error, TimeoutError):
            raise SandboxFailed(f"Sandbox '{spec.name}' did not start in {START_SECONDS} s.") from None
        raise
    finally:
        os.close(report)
    return Launched(process, init, init_pidfd)


async def _reach_gate(name: str, process: Process) -> None:
    """Wait until everything stands and nothing has run; what bwrap complains of is the error."""
    said = b""
    while (output := await process.streams.read()) is not None:
        if output.source == "stdout" and output.data == GATE_REPORT:
            return
        said = (said + output.data)[:STDERR_BYTES]
    text = said.decode(errors="replace").strip() or f"exit code {await process.ended()}"
    raise SandboxFailed(f"Sandbox '{name}' could not be made: {text}.{_advice(text)}")


async def _bound_to_us(init: int) -> None:
    """Wait until the first process has asked to die with bwrap, which it does beside the gate.

    Were the gate open before, and we killed in between, the sandbox would live on. The filter
    is what it asks for next, and can be seen. Until then a closed gate ends with our streams.
    """
    while (seen := procfs.facts(init)) is not None and seen.seccomp_mode == 0:
        await asyncio.sleep(GLANCE_SECONDS)


async def _open_gate(process: Process, init_pidfd: int) -> None:
    try:
        await process.streams.write(GATE_ANSWER)
    except BaseException:
        os.close(init_pidfd)
        raise


def _advice(complaint: str) -> str:
    if not any(word in complaint for word in ("namespace", "uid map", "Operation not permitted")):
        return ""
    return (
        " This machine refuses user namespaces to ordinary users. Allow them, by the one that it has of"
        " sysctl -w kernel.unprivileged_userns_clone=1, sysctl -w user.max_user_namespaces=15000 and"
        " sysctl -w kernel.apparmor_restrict_unprivileged_userns=0. In a container, use an engine instead."
    )


async def _limit_files(init: int, limits: SandboxLimits) -> None:
    """As far as we may: `examine` tells whether it worked."""
    few = limits.tmp_files
    counts = {"/workspace": limits.workspace_files, "/tmp": few, "/dev/shm": few}  # noqa: S108
    try:
        if os.geteuid() == 0:
            for path, count in counts.items():
                tmpfs.limit_files(f"/proc/{init}/root{path}", count)
        else:
            await _limit_files_from_inside(init, counts)
    except OSError as error:
        logger.warning("The number of files in a sandbox could not be limited: %s", error)


async def _limit_files_from_inside(init: int, counts: dict[str, int]) -> None:
    places = [str(word) for place in counts.items() for word in place]
    command = [sys.executable, "-I", "-S", tmpfs.__file__, str(init), *places]
    process = Process("file limit", command, [])
    try:
        await process.ended()
    finally:
        await finish(process.end())


@contextmanager
def _descriptors(programs: Programs) -> Iterator[tuple[Descriptors, int]]:
    """What bwrap is handed over, closed on leaving, and our end of its report, which stays open."""
    with ExitStack() as theirs, ExitStack() as ours:
        report, reporting = os.pipe()
        theirs.callback(os.close, reporting)
        ours.callback(os.close, report)

        def file(content: bytes) -> int:
            descriptor = os.memfd_create("handed-over")
            theirs.callback(os.close, descriptor)
            _fill(descriptor, content)
            return descriptor

        files = {path: file(content) for path, content in programs.files.items()}
        yield Descriptors(file(b""), file(seccomp.filter_program()), reporting, files), report
        ours.pop_all()


def _fill(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
