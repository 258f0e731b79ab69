"""What a tool of the same user can do to the server: only end it. And what the server sees of its sandbox."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.workspace_server.client import SERVER, ServerProcess
from tests.support.landlock import keeps_signals_in

FACTS = {
    "uid",
    "gid",
    "groups",
    "capabilities",
    "no_new_privileges",
    "seccomp",
    "dumpable",
    "landlock",
    "interfaces",
    "routes",
    "writable",
    "file_systems",
    "limits",
    "rlimits",
    "refused",
    "processes",
    "environment",
    "kernel",
    "container_pid",
}
REFUSABLE = {
    "user_namespace",
    "io_uring",
    "af_vsock",
    "af_netlink",
    "af_packet",
    "af_alg",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "mount",
    "ptrace",
    "personality",
}


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose user is not root, for whom the kernel makes no exceptions."""
    if os.geteuid() != 0:
        with ServerProcess(tmp_path) as running:
            yield running
        return
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("There is no Python that another user than root may run.")
    # The folders of pytest and of the sources may be closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="workspace-server-"))
    sources = shutil.copytree(SERVER, folder / "server", ignore=shutil.ignore_patterns("__pycache__"))
    workspace = folder / "workspace"
    workspace.mkdir()
    folder.chmod(0o755)
    os.chown(workspace, 1000, 1000)
    try:
        with ServerProcess(workspace, python=python, sources=sources, user=1000) as running:
            yield running
    finally:
        shutil.rmtree(folder)


def test_a_tool_cannot_write_into_the_answers_of_the_server(unprivileged: ServerProcess) -> None:
    forged = '{"jsonrpc":"2.0","id":1,"result":{"forged":true}}'
    pid = unprivileged.process.pid
    attack = (
        f"for fd in 0 1 2 3 4 5 6 7 8 9; do echo '{forged}' > /proc/{pid}/fd/$fd; done; ls /proc/{pid}/fd"
    )
    result = unprivileged.call("execute_command", command=f"id -u; {attack}")
    assert "--- stdout ---\n0\n" not in result.text
    assert "Permission denied" in result.text
    assert result.is_error
    assert unprivileged.is_alive()


def test_a_tool_cannot_read_the_memory_or_environment_of_the_server(unprivileged: ServerProcess) -> None:
    pid = unprivileged.process.pid
    for file in ("environ", "mem", "maps", "cwd/x", "root/etc/passwd"):
        result = unprivileged.call("execute_command", command=f"cat /proc/{pid}/{file}")
        assert result.is_error
        assert "canary" not in result.text


def test_a_tool_is_found_by_its_mark_even_though_the_server_is_closed(unprivileged: ServerProcess) -> None:
    other = unprivileged.begin_call("execute_command", command="sleep 60")
    daemon = (
        "setsid sh -c 'echo $$ > pid; sleep 60 & sleep 60' > /dev/null 2>&1 & until [ -s pid ]; do :; done"
    )
    result = unprivileged.call("execute_command", command=daemon)
    assert "running in the background, now stopped" in result.text
    oom = unprivileged.call("execute_command", command="cat /proc/self/oom_score_adj").text
    assert "--- stdout ---\n1000\n" in oom
    unprivileged.cancel(other)


@pytest.mark.skipif(not keeps_signals_in(), reason="Landlock here does not keep signals in: Linux 6.12 does.")
def test_a_tool_cannot_signal_the_server(unprivileged: ServerProcess) -> None:
    pid = unprivileged.process.pid
    result = unprivileged.call("execute_command", command=f"kill -9 {pid}")
    assert "not permitted" in result.text
    assert "alive" in unprivileged.call("execute_command", command="echo alive").text


def test_the_facts_are_complete_and_true(unprivileged: ServerProcess) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    facts = unprivileged.request("initialize", params)["result"]["_meta"]["io.mcp-orchestrator/sandbox"]

    assert set(facts) == FACTS
    assert set(facts["refused"]) == REFUSABLE
    assert facts["uid"] == (1000 if os.geteuid() == 0 else os.getuid())
    assert facts["groups"] == ([] if os.geteuid() == 0 else sorted(os.getgroups()))
    assert facts["capabilities"]["effective"] == 0
    assert facts["dumpable"] is False
    assert "lo" in facts["interfaces"]
    assert "/tmp" in facts["writable"]
    assert "/etc" not in facts["writable"]
    assert facts["refused"]["mount"] is True
    assert facts["refused"]["af_packet"] is True
    assert facts["environment"] == ["SECRET_OF_THE_SERVER"]
    assert facts["container_pid"] == unprivileged.process.pid
    assert facts["kernel"] == Path("/proc/version").read_text()[:100].strip()
    assert facts["file_systems"]["/tmp"]["bytes"] > 0
    assert unprivileged.is_alive()


def test_the_facts_can_be_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(SERVER), "--facts"]
    printed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=10)
    assert set(json.loads(printed.stdout)) == FACTS
    assert printed.stderr == b""


def test_examining_the_sandbox_leaves_no_file_behind() -> None:
    command = [sys.executable, "-I", "-S", str(SERVER), "--facts"]
    subprocess.run(command, capture_output=True, check=True, timeout=10)
    assert [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob(".mcp-probe*")] == []


def test_an_idle_server_loads_nothing_it_does_not_need(server: ServerProcess) -> None:
    heavy = {"asyncio", "typing", "dataclasses", "re", "enum", "json", "subprocess", "pathlib", "logging"}
    heavy |= {
        "threading",
        "ctypes",
        "signal",
        "struct",
        "inspect",
        "commands",
        "searching",
        "difflib",
        "facts",
    }
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(SERVER), "--root", str(server.workspace)]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=10)
    loaded = {line.rpartition("|")[2].strip() for line in run.stderr.decode().splitlines()}
    assert "protocol" in loaded
    assert not loaded & heavy


def test_an_idle_server_is_small(server: ServerProcess) -> None:
    server.request("initialize", {"protocolVersion": "2025-11-25"})
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    anonymous = int(status.partition("RssAnon:")[2].split()[0])
    assert anonymous < 7 * 1024
