"""What bubblewrap is told, word by word, and what is found out about the machine before."""

import os
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mcp_orchestrator.sandbox.backend import BackendUnavailable, SandboxLimits, SandboxSpec
from mcp_orchestrator.sandbox.bubblewrap import program, users
from mcp_orchestrator.sandbox.bubblewrap.cgroups import Hierarchy
from mcp_orchestrator.sandbox.bubblewrap.description import (
    GATE,
    LAUNCHER,
    Descriptors,
    Host,
    bwrap_options,
    launch_command,
)

SPEC = SandboxSpec("name", "image", limits=SandboxLimits(workspace_bytes=7, tmp_bytes=8, shm_bytes=9))
HOST = Host(
    links={"/bin": "usr/bin"},
    binds={"/usr": "/usr", "/opt/python": "/home/somebody/python"},
    bwrap_directory="/",
    bwrap=("/usr/bin/bwrap",),
    python="/usr/bin/python3",
    open_files=4096,
)
DESCRIPTORS = Descriptors(arguments=3, seccomp=4, info=5, files={"/etc/passwd": 6, "/opt/mcp/server/a.py": 7})
MARK = "0123456789abcdef"
GROUP = Hierarchy(1, {"memory": Path("/m"), "pids": Path("/p"), "freezer": Path("/p")}).group("name")


def test_every_namespace_is_new_and_no_other_can_be_made_inside() -> None:
    options = bwrap_options(SPEC, HOST, DESCRIPTORS)
    assert {"--unshare-all", "--unshare-user", "--disable-userns"} <= set(options)
    assert not [word for word in options if word.startswith(("--share", "--userns", "--pidns"))]


def test_it_is_the_same_ordinary_user_everywhere_with_no_capability() -> None:
    options = list(pairwise(bwrap_options(SPEC, HOST, DESCRIPTORS)))
    assert {("--uid", "1000"), ("--gid", "1000"), ("--cap-drop", "ALL"), ("--seccomp", "4")} <= set(options)
    assert not [word for word, _ in options if word == "--cap-add"]


def test_it_dies_with_us_and_has_no_terminal_of_ours() -> None:
    assert {"--die-with-parent", "--new-session"} <= set(bwrap_options(SPEC, HOST, DESCRIPTORS))


def test_whatever_the_host_shows_is_read_only() -> None:
    options = bwrap_options(SPEC, HOST, DESCRIPTORS)
    binds = [options[at : at + 3] for at, word in enumerate(options) if "bind" in word]
    assert binds == [["--ro-bind", "/usr", "/usr"], ["--ro-bind", "/home/somebody/python", "/opt/python"]]


def test_what_can_be_written_is_bounded_and_the_rest_is_sealed_afterwards() -> None:
    options = bwrap_options(SPEC, HOST, DESCRIPTORS)
    sizes = {options[at + 3]: options[at + 1] for at, word in enumerate(options) if word == "--size"}
    assert sizes == {"/workspace": "7", "/tmp": "8", "/dev/shm": "9"}
    assert options.count("--tmpfs") == 3
    sealed = [at for at, word in enumerate(options) if word == "--remount-ro"]
    assert [options[at + 1] for at in sealed] == ["/dev", "/"]
    assert sealed[-1] > max(
        at for at, word in enumerate(options) if word in ("--tmpfs", "--file", "--ro-bind")
    )


def test_files_are_handed_over_by_number_into_directories_that_can_be_entered() -> None:
    options = bwrap_options(SPEC, HOST, DESCRIPTORS)
    directories = [options[at + 1] for at, word in enumerate(options) if word == "--dir"]
    assert directories == ["/etc", "/opt", "/opt/mcp", "/opt/mcp/server"]
    assert options[options.index("--file") - 2 :][:5] == ["--perms", "0444", "--file", "6", "/etc/passwd"]


def test_root_becomes_somebody_else_before_bwrap_and_an_ordinary_user_stays() -> None:
    as_root = launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=1_880_000_000, group=None)
    as_user = launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=None, group=None)
    become = as_root[as_root.index("/usr/bin/setpriv") : as_root.index("/usr/bin/bwrap")]
    assert {"--reuid=1880000000", "--regid=1880000000", "--clear-groups", "--no-new-privs"} <= set(become)
    assert "/usr/bin/setpriv" not in as_user


def test_the_process_is_in_its_groups_before_anything_else_runs() -> None:
    command = launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=None, group=GROUP)
    assert command[:8] == [
        *("/bin/sh", "-c", LAUNCHER, "launcher", "/"),
        *("/m/name/cgroup.procs", "/p/name/cgroup.procs", "--"),
    ]


def test_resource_limits_stand_in_for_missing_groups() -> None:
    def limits(command: list[str]) -> list[str]:
        return command[command.index("/usr/bin/prlimit") + 1 : -4]

    always = ["--nofile=1024:1024", "--core=0:0", "--fsize=7:7"]
    assert limits(launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=None, group=GROUP)) == [
        *always,
        "--",
    ]
    assert limits(launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=None, group=None)) == [
        *(*always, "--nproc=128:128", "--data=536870912:536870912", "--")
    ]


def test_no_limit_asks_for_more_than_we_have_ourselves() -> None:
    command = launch_command(
        SPEC, replace(HOST, open_files=64), DESCRIPTORS, mark=MARK, uid=None, group=GROUP
    )
    assert "--nofile=64:64" in command


def test_the_server_of_the_package_runs_unless_another_is_named() -> None:
    assert launch_command(SPEC, HOST, DESCRIPTORS, mark=MARK, uid=None, group=None)[-4:] == [
        *("/usr/bin/python3", "-I", "-S", "/opt/mcp/workspace_server")
    ]
    named = replace(SPEC, command=("/usr/bin/node", "server.js"))
    assert launch_command(named, HOST, DESCRIPTORS, mark=MARK, uid=None, group=None)[-2:] == [
        "/usr/bin/node",
        "server.js",
    ]


def test_values_are_never_part_of_a_shell_text() -> None:
    hostile = replace(SPEC, command=("$(touch /tmp/x)", "; rm -rf /"))
    command = launch_command(hostile, HOST, DESCRIPTORS, mark=MARK, uid=None, group=None)
    texts = [after for word, after in pairwise(command) if word == "-c"]
    assert texts == [LAUNCHER, GATE]


def test_the_launcher_passes_on_no_variable_and_its_arguments_unchanged(tmp_path: Path) -> None:
    joined = tmp_path / "cgroup.procs"
    words = ["a b", "$HOME", "--", "*"]
    command = ["/bin/sh", "-c", LAUNCHER, "launcher", str(tmp_path), str(joined), "--"]
    show = "import os, sys; print(os.environ, os.getcwd(), os.getpid(), sys.argv[1:])"
    done = subprocess.run(
        [*command, "/usr/bin/python3", "-I", "-S", "-c", show, *words],
        env={"SECRET": "x"},
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert (
        done.stdout == f"environ({{'LC_CTYPE': 'C.UTF-8'}}) {tmp_path} {joined.read_text().strip()} {words}\n"
    )


def test_nothing_runs_when_nobody_opens_the_gate() -> None:
    command = ["/bin/sh", "-c", GATE, "gate", "/bin/echo", "ran"]
    closed = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=10)
    opened = subprocess.run(command, input=b"\n", capture_output=True, check=False, timeout=10)
    assert closed.stdout == b"\n"
    assert closed.returncode != 0
    assert opened.stdout == b"\nran\n"


def test_the_user_of_a_sandbox_comes_from_a_range_that_exists_here() -> None:
    assert users.uid_range("         0          0 4294967295\n").start == 0x7000_0000
    assert users.uid_range("0 100000 65536\n") == range(50_000, 59_000)
    with pytest.raises(BackendUnavailable, match="ordinary user"):
        users.uid_range("0 1000 1\n")


def test_a_package_without_its_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="workspace server is missing"):
        program.server_sources(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user enters what is theirs")
def test_a_private_python_is_not_shown_to_a_user_who_could_not_enter_it(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    assert not program._may_be_entered(private)


async def test_the_server_is_compiled_by_the_python_that_runs_it() -> None:
    sources = {"/opt/mcp/workspace_server/__main__.py": "print('compiled')\n"}
    python, _, compiled = await program._find_python(sources)
    [(path, code)] = compiled.items()
    assert python
    assert path.startswith("/opt/mcp/workspace_server/__pycache__/__main__.cpython-3")
    # A hash instead of a date, which is never checked.
    assert code[4:8] == (1).to_bytes(4, "little")


async def test_a_machine_without_any_python_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_python_candidates", lambda: [("/nonexistent/python3", "/x", {})])
    with pytest.raises(BackendUnavailable, match="apt install python3"):
        await program._find_python({})
