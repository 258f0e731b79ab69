"""Commands: what they say, how they end, and that nothing of them stays."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.workspace_server.client import Json, ServerProcess


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline, what


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} was never written")
    return int(path.read_text())


def test_the_answer_has_the_exit_code_and_both_streams(server: ServerProcess) -> None:
    result = server.call("execute_command", command="echo out; echo err >&2; exit 3")
    assert result.is_error
    assert result.text.startswith("Exit code 3 after")
    assert "--- stdout ---\nout\n" in result.text
    assert "--- stderr ---\nerr\n" in result.text
    assert not server.call("execute_command", command="true").is_error


def test_a_command_that_dies_of_a_signal_says_which(server: ServerProcess) -> None:
    result = server.call("execute_command", command="kill -9 $$")
    assert result.is_error
    assert "Killed by signal 9" in result.text


def test_it_is_a_shell_and_the_command_reaches_it_unchanged(server: ServerProcess) -> None:
    for command, said in [
        ("printf '%s' \"$(echo a; echo b)\" | tr '\\n' '-'", "a-b"),
        ("printf '%s' '; & | ` $() \"'", '; & | ` $() "'),
        ("false || echo -rf --", "-rf --"),
        ("echo one\necho two", "one\ntwo"),
        ("cat <<'E'\n☃ \u202e\nE", "☃ \u202e"),
    ]:
        assert f"--- stdout ---\n{said}" in server.call("execute_command", command=command).text


def test_the_environment_is_small_fixed_and_without_ours(server: ServerProcess, workspace: Path) -> None:
    text = server.call("execute_command", command="env", env={"MINE": "yes", "LANG": "de"}).text
    variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert variables["HOME"] == str(workspace)
    assert variables["MINE"] == "yes"
    assert variables["LANG"] == "de"
    assert variables["TMPDIR"] == "/tmp"
    assert "canary" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "a\0b"},
        {"command": "x" * 3_000_000},
        {"command": "true", "env": {"A=B": "c"}},
        {"command": "true", "env": {"": "c"}},
        {"command": "true", "env": {"A": "\0"}},
        {"command": "true", "cwd": "missing"},
        {"command": "\ud800"},
    ],
)
def test_a_command_that_cannot_be_started_is_answered(server: ServerProcess, arguments: Json) -> None:
    result = server.call("execute_command", **arguments)
    assert result.is_error
    assert "Exit code" not in result.text


def test_too_much_environment_is_told_in_the_answer(server: ServerProcess) -> None:
    result = server.call("execute_command", command="true", env={"A": "x" * 3_000_000})
    assert result.is_error
    assert "Argument list too long" in result.text


def test_standard_input_is_given_and_ends(server: ServerProcess) -> None:
    assert "--- stdout ---\n5" in server.call("execute_command", command="wc -c", stdin="hello").text
    assert "--- stdout ---\n0" in server.call("execute_command", command="wc -c").text
    big = server.call("execute_command", command="wc -c", stdin="x" * 5_000_000)
    assert "5000000" in big.text


def test_it_runs_in_the_directory_that_was_asked_for(server: ServerProcess, workspace: Path) -> None:
    (workspace / "below").mkdir()
    assert f"\n{workspace}\n" in server.call("execute_command", command="pwd").text
    assert f"\n{workspace}/below\n" in server.call("execute_command", command="pwd", cwd="below").text


def test_output_is_shown_while_it_runs_and_tells_the_streams_apart(
    server: ServerProcess, workspace: Path
) -> None:
    os.mkfifo(workspace / "gate")
    call = server.begin_call(
        "execute_command", progress=True, command="echo first; echo wrong >&2; read line < gate; echo last"
    )
    server.wait_for_progress("first")
    server.wait_for_progress("wrong")
    (workspace / "gate").write_text("go\n")
    server.answer(call)

    shown = [notification["params"] for notification in server.notifications]
    streams = {params["message"]: params["_meta"]["io.mcp-orchestrator/stream"] for params in shown}
    assert streams == {"first\n": "stdout", "wrong\n": "stderr", "last\n": "stdout"}
    assert {params["progressToken"] for params in shown} == {f"token-{call}"}
    progress = [params["progress"] for params in shown]
    assert progress == sorted(set(progress))


def test_without_a_token_nothing_is_shown_live(server: ServerProcess) -> None:
    server.call("execute_command", command="echo quiet")
    assert server.notifications == []


def test_a_flood_is_shown_in_few_bounded_pieces(server: ServerProcess) -> None:
    started = time.monotonic()
    server.answer(server.begin_call("execute_command", progress=True, command="yes | head -c 20000000"))
    seconds = time.monotonic() - started
    last_pieces = 17  # of 64 KiB: what the command had said before anybody could be told
    assert len(server.notifications) <= 20 * seconds + 4 + last_pieces
    shown = [len(note["params"]["message"]) for note in server.notifications]
    assert max(shown) <= 64 * 1024
    assert sum(shown) < 1024 * 1024 + 100


def test_a_character_cut_in_two_by_a_pipe_is_shown_whole(server: ServerProcess, workspace: Path) -> None:
    os.mkfifo(workspace / "gate")
    command = r"printf 'x\342\230'; read line < gate; printf '\203y'"
    call = server.begin_call("execute_command", progress=True, command=command)
    server.wait_for_progress("x")
    (workspace / "gate").write_text("go\n")
    server.answer(call)
    assert "".join(note["params"]["message"] for note in server.notifications) == "x☃y"


def test_long_output_is_cut_in_the_middle_and_kept_in_a_file(server: ServerProcess, workspace: Path) -> None:
    result = server.call("execute_command", command="seq 1 100000")

    assert len(result.text) < 40_000
    assert "--- stdout ---\n1\n2\n" in result.text
    assert result.text.endswith("99999\n100000\n")
    assert "bytes left out" in result.text
    (saved,) = (workspace / ".output").iterdir()
    assert str(saved) in result.text
    assert saved.read_text() == "".join(f"{number}\n" for number in range(1, 100_001))


def test_endless_output_is_bounded_in_memory_and_on_disk(server: ServerProcess, workspace: Path) -> None:
    result = server.call("execute_command", command="yes", timeout_seconds=0.5)
    assert "Timed out" in result.text
    assert "The first 4194304 of it" in result.text
    assert sum(file.stat().st_size for file in (workspace / ".output").iterdir()) <= 4 * 1024 * 1024
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 30_000


def test_old_output_makes_room_for_new(server: ServerProcess, workspace: Path) -> None:
    for _ in range(12):
        server.call("execute_command", command="seq 1 10000")
    assert len(list((workspace / ".output").iterdir())) == 8


def test_output_that_cannot_be_saved_is_still_answered(server: ServerProcess, workspace: Path) -> None:
    (workspace / ".output").symlink_to("/etc")
    result = server.call("execute_command", command="seq 1 100000")
    assert not result.is_error
    assert "could not be saved" in result.text
    assert "symbolic link" in result.text


def test_other_calls_are_served_while_a_command_runs(server: ServerProcess) -> None:
    slow = server.begin_call("execute_command", command="sleep 60")
    assert "Exit code 0" in server.call("execute_command", command="true").text
    assert server.is_alive()
    server.cancel(slow)
    assert slow not in server.answers


def test_more_commands_than_allowed_at_once_are_refused(server: ServerProcess, workspace: Path) -> None:
    os.mkfifo(workspace / "gate")
    waiting = [server.begin_call("execute_command", command="cat gate") for _ in range(16)]
    assert "16 commands are running" in server.call("execute_command", command="true").text
    for request_id in waiting:
        server.cancel(request_id)
    assert "Exit code 0" in server.call("execute_command", command="true").text


# Each writes the pid of what it leaves behind, in its own way of hiding.
DAEMONS = {
    "background": "sleep 60 & echo $! > pid",
    "own session": "setsid sh -c 'echo $$ > pid; exec sleep 60' &",
    "no pipes": "setsid sh -c 'echo $$ > pid; exec sleep 60' < /dev/null > /dev/null 2>&1 &",
    "double fork": "(setsid sh -c '(sh -c \"echo \\$\\$ > pid; exec sleep 60\" &)' &)",
    "no marks": "(setsid env -i sh -c '(sh -c \"echo \\$\\$ > pid; exec sleep 60\" &)' > /dev/null 2>&1 &)",
    "ignores signals": "trap '' TERM HUP INT; sleep 60 & echo $! > pid",
}


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS.keys())
def test_what_a_command_leaves_running_is_killed_and_counted(
    server: ServerProcess, workspace: Path, daemon: str
) -> None:
    result = server.call("execute_command", command=f"{daemon}\nuntil [ -s pid ]; do :; done; echo done")
    assert not result.is_error
    assert "running in the background, now stopped" in result.text
    pid = pid_in(workspace / "pid")
    wait_until(lambda: not is_running(pid), "the daemon still runs")


@pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS.keys())
def test_cancelling_kills_the_whole_tree_and_gives_no_answer(
    server: ServerProcess, workspace: Path, daemon: str
) -> None:
    call = server.begin_call("execute_command", command=f"{daemon}\nsleep 60")
    pid = pid_in(workspace / "pid")

    server.cancel(call)

    wait_until(lambda: not is_running(pid), "the daemon still runs")
    assert server.is_alive()
    assert call not in server.answers
    wait_until(lambda: _children(server) == [], "something was not reaped")


def test_a_timeout_kills_the_whole_tree_and_keeps_what_was_said(
    server: ServerProcess, workspace: Path
) -> None:
    daemon = DAEMONS["own session"]
    result = server.call(
        "execute_command", command=f"echo said; {daemon} trap '' TERM; sleep 60", timeout_seconds=0.5
    )
    assert result.is_error
    assert "Timed out" in result.text
    assert "--- stdout ---\nsaid" in result.text
    assert not is_running(pid_in(workspace / "pid"))


def test_the_end_of_one_command_spares_the_processes_of_another(
    server: ServerProcess, workspace: Path
) -> None:
    other = server.begin_call("execute_command", command=f"{DAEMONS['double fork']}\nsleep 60")
    pid = pid_in(workspace / "pid")

    server.call("execute_command", command="sleep 60 & setsid sleep 60 & true")

    assert is_running(pid)
    server.cancel(other)
    wait_until(lambda: not is_running(pid), "the daemon still runs")


def test_a_daemon_is_told_from_those_of_a_running_call_by_its_mark(
    server: ServerProcess, workspace: Path
) -> None:
    other = server.begin_call("execute_command", command="sleep 60")
    daemon = DAEMONS["double fork"]
    server.call("execute_command", command=f"{daemon}\nuntil [ -s pid ]; do :; done")
    pid = pid_in(workspace / "pid")
    wait_until(lambda: not is_running(pid), "the daemon still runs")
    server.cancel(other)


def test_late_words_of_a_background_process_are_heard_for_a_moment_only(server: ServerProcess) -> None:
    late = (
        "(while kill -0 $$ 2> /dev/null; do :; done; echo late) &"  # speaks when the command itself is gone
    )
    started = time.monotonic()
    text = server.call("execute_command", command=f"{late} (sleep 60; echo never) & true").text
    assert "late" in text
    assert "never" not in text
    assert time.monotonic() - started < 5


def test_many_zombies_are_reaped(server: ServerProcess) -> None:
    command = "for i in $(seq 120); do (setsid sh -c ':' &) ; done; true"
    server.call("execute_command", command=command)
    assert "Exit code 0" in server.call("execute_command", command="true").text
    wait_until(lambda: _children(server) == [], "zombies are left")


def test_a_process_whose_first_thread_ended_is_killed_too(server: ServerProcess, workspace: Path) -> None:
    script = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "open('pid', 'w').write(f'{os.getpid()}\\n')\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit of this thread alone
    )
    (workspace / "script.py").write_text(script)
    server.call(
        "execute_command", command="setsid python3 script.py & until [ -s pid ]; do :; done; sleep 0.1"
    )
    pid = pid_in(workspace / "pid")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its second thread still runs")


def test_the_end_of_input_kills_what_still_runs(server: ServerProcess, workspace: Path) -> None:
    server.begin_call("execute_command", command=f"{DAEMONS['no marks']}\nsleep 60")
    pid = pid_in(workspace / "pid")
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.process.wait(5) == 0
    wait_until(lambda: not is_running(pid), "the daemon still runs")


def test_an_id_that_comes_again_belongs_to_the_new_call_alone(server: ServerProcess, workspace: Path) -> None:
    old = {"name": "execute_command", "arguments": {"command": "echo $$ > pid; exec sleep 60"}}
    new = {"name": "execute_command", "arguments": {"command": "echo new"}}
    server.send({"jsonrpc": "2.0", "id": 900, "method": "tools/call", "params": old})
    pid = pid_in(workspace / "pid")
    server.send({"jsonrpc": "2.0", "id": 900, "method": "tools/call", "params": new})
    assert "new" in server.answer(900)["result"]["content"][0]["text"]
    wait_until(lambda: not is_running(pid), "the old command still runs")
    assert server.is_alive()


def test_a_client_that_does_not_read_cannot_grow_the_server_or_stop_a_timeout(
    server: ServerProcess, workspace: Path
) -> None:
    (workspace / "big.txt").write_text("x" * 250_000)
    command = "echo $$ > pid; exec sleep 60"
    slow = server.begin_call("execute_command", command=command, timeout_seconds=1)
    pid = pid_in(workspace / "pid")

    reads = [server.begin_call("read_file", path="big.txt") for _ in range(300)]  # answers of 75 MB in all

    wait_until(lambda: not is_running(pid), "the timeout waits for the client")
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 40_000
    assert "Timed out" in server.answer(slow)["result"]["content"][0]["text"]
    assert all("result" in server.answer(read) for read in reads)


def test_the_child_is_the_first_to_go_when_memory_runs_out(server: ServerProcess) -> None:
    text = server.call("execute_command", command="cat /proc/self/oom_score_adj").text
    assert "--- stdout ---\n1000\n" in text
    own = int(Path(f"/proc/{server.process.pid}/oom_score_adj").read_text())
    assert own < 1000


def test_the_child_has_no_files_and_no_ignored_signals_of_the_server(server: ServerProcess) -> None:
    text = server.call("execute_command", command="ls /proc/self/fd; grep SigIgn /proc/self/status").text
    listed = text.partition("--- stdout ---\n")[2].split()
    assert listed[:4] == ["0", "1", "2", "3"]  # the last is the listing itself
    ignored_by_python = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert int(listed[5], 16) & ignored_by_python == 0  # others may come from whoever started the tests


def _children(server: ServerProcess) -> list[str]:
    pid = server.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
