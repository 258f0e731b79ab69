"""No path leads out of the workspace, and every name that is shown leads back to its file."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.workspace_server.client import ServerProcess

SECRET = "outside the workspace"

# What every path tool does with the path; all must refuse alike.
TOOLS = {
    "read_file": {},
    "write_file": {"content": "mine"},
    "edit_file": {"old_text": "outside", "new_text": "inside"},
    "list_files": {},
    "search_files": {"query": "outside"},
}


@pytest.fixture
def outside(workspace: Path) -> Path:
    folder = workspace.parent / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


def refused_everywhere(server: ServerProcess, path: str) -> None:
    for tool, arguments in TOOLS.items():
        result = server.call(tool, path=path, **arguments)
        assert result.is_error, f"{tool} accepted {path!r}"
        assert SECRET not in result.text
    assert server.call("execute_command", command="cat secret.txt", cwd=path).is_error


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "../../etc/passwd",
        "/etc/passwd",
        "//etc/passwd",
        "/",
        "..",
        "a/../../outside/secret.txt",
        "./../outside/secret.txt",
        "/proc/self/environ",
        "/dev/zero",
        "..\\x2foutside",
        "\\x2e\\x2e/outside/secret.txt",
        "a\0b",
        "a\\x00b",
        "~/secret.txt\n/..",
    ],
)
def test_a_path_out_of_the_workspace_is_refused_by_every_tool(
    server: ServerProcess, outside: Path, path: str
) -> None:
    refused_everywhere(server, path)
    assert (outside / "secret.txt").read_text() == SECRET


def test_an_absolute_path_beside_the_workspace_with_the_same_beginning_is_refused(
    server: ServerProcess, workspace: Path
) -> None:
    neighbour = workspace.with_name("workspace-of-another")
    neighbour.mkdir()
    (neighbour / "secret.txt").write_text(SECRET)
    refused_everywhere(server, f"{neighbour}/secret.txt")


def test_padded_and_absolute_paths_inside_the_workspace_are_accepted(
    server: ServerProcess, workspace: Path
) -> None:
    (workspace / "a").mkdir()
    (workspace / "a" / "b.txt").write_text("here")
    for path in ("a/b.txt", "./a//b.txt", "a/./b.txt", f"{workspace}/a/b.txt", f"{workspace}//a/b.txt"):
        assert server.call("read_file", path=path).first == "here"
    assert "a/b.txt" in server.call("list_files", path=str(workspace), recursive=True).text


def test_symbolic_links_are_refused_wherever_they_stand(
    server: ServerProcess, workspace: Path, outside: Path
) -> None:
    (workspace / "file").symlink_to(outside / "secret.txt")
    (workspace / "folder").symlink_to(outside)
    (workspace / "system").symlink_to("/")
    (workspace / "environ").symlink_to("/proc/self/environ")
    (workspace / "loop").symlink_to("loop")
    for path in ("file", "folder/secret.txt", "system/etc/passwd", "environ", "loop", "loop/x"):
        refused_everywhere(server, path)
    assert "symbolic link" in server.call("read_file", path="file").text
    assert "symbolic link" in server.call("read_file", path="folder/secret.txt").text
    assert (outside / "secret.txt").read_text() == SECRET
    assert SECRET not in server.call("search_files", query="outside").text


@contextmanager
def swapping(workspace: Path, outside: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Swap `place` and `file` with links to the outside and back, ten thousand times, as fast as it goes."""
    script = """
import os, shutil, sys
os.chdir(sys.argv[1])
def put(name, place):
    while True:
        try:
            return os.rename(name, place)
        except IsADirectoryError:
            shutil.rmtree(place, ignore_errors=True)  # made by the server meanwhile, to write into
        except OSError as error:
            if error.errno != 39: raise
            shutil.rmtree(place, ignore_errors=True)
for number in range(10_000):
    os.rename("place", "kept"); os.symlink(sys.argv[2], "link"); put("link", "place")
    os.symlink(sys.argv[2] + "/secret.txt", "link"); os.rename("link", "file")
    os.unlink("place"); put("kept", "place")
    os.link("kept-file", "link"); os.rename("link", "file")
"""
    place = workspace / "place"
    place.mkdir()
    (place / "secret.txt").write_text("inside")
    (workspace / "kept-file").write_text("inside")
    (workspace / "file").write_text("inside")
    swapper = subprocess.Popen([sys.executable, "-c", script, str(workspace), str(outside)])
    try:
        yield swapper
    finally:
        swapper.kill()
        swapper.wait()


def test_ten_thousand_swaps_of_a_link_never_lead_outside(
    server: ServerProcess, workspace: Path, outside: Path
) -> None:
    seen: set[str] = set()
    written = 0
    with swapping(workspace, outside) as swapper:
        while swapper.poll() is None:
            for path in ("place/secret.txt", "file"):
                seen.add(server.call("read_file", path=path).first)
                written += not server.call("write_file", path=path, content="inside").is_error
            seen.add(server.call("search_files", query="outside").text)
        assert swapper.returncode == 0

    assert "inside" in seen, "the race was never won by the right file"
    assert not any(SECRET in text for text in seen)
    assert written
    assert (outside / "secret.txt").read_text() == SECRET
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


def test_pipes_sockets_and_devices_are_refused_without_waiting(
    server: ServerProcess, workspace: Path
) -> None:
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace / "socket"))
        if os.geteuid() == 0:
            os.mknod(workspace / "device", 0o20666, os.makedev(1, 5))  # /dev/zero
        for name in ("pipe", "socket", "device"):
            if (workspace / name).exists():
                refused_everywhere(server, name)
                assert server.call("write_file", path=name, content="x", append=True).is_error
    assert "named pipe" in server.call("read_file", path="pipe").text
    assert server.is_alive()


def test_a_directory_is_not_read_or_replaced(server: ServerProcess, workspace: Path) -> None:
    (workspace / "folder").mkdir()
    for tool in ("read_file", "write_file", "edit_file"):
        result = server.call(tool, path="folder", **TOOLS[tool])
        assert result.is_error
        assert "a directory" in result.text
    assert server.call("write_file", path=".", content="x").is_error


ODD_NAMES = [
    b"line\nend",
    b"\x1b[31mred\x1b[0m",
    "right\u202eto left".encode(),
    "zero\u200bwidth".encode(),
    b"not \xff\xfe utf-8",
    b"back\\slash",
    b"looks\\x41escaped",
    b"double\\\\x41",
    b" spaces ",
    b" ",
    b"\\",
    b"\\x",
    b"tab\tand\x7f",
    b"\xe2\x98",
    "snow☃man".encode(),
    b"x" * 255,
    b"-rf",
    b"...",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_an_odd_name_is_shown_in_visible_text_that_leads_back_to_the_file(
    server: ServerProcess, workspace: Path, name: bytes
) -> None:
    path = os.fsencode(workspace) + b"/" + name
    with open(path, "wb") as file:  # noqa: PTH123 - the name may be no text
        file.write(b"found")

    shown = server.call("list_files").first.split(maxsplit=2)[2]

    assert shown.isprintable()
    assert shown == shown.strip()
    assert server.call("read_file", path=shown).first == "found"
    assert not server.call("write_file", path=shown, content="changed").is_error
    assert [os.fsencode(found.name) for found in workspace.iterdir()] == [name]
    assert server.call("search_files", query="changed").first == f"{shown}:1:changed"


def test_a_name_that_is_too_long_is_answered(server: ServerProcess) -> None:
    assert "too long" in server.call("write_file", path="x" * 256, content="").text
    assert "too long" not in server.call("write_file", path="/".join(["d" * 200] * 30), content="deep").text
