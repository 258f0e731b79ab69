"""The command as a person types it: a process of its own, its output and its exit code."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import KINDS

Environment = dict[str, str]


class Ended(NamedTuple):
    code: int | None
    out: str
    err: str


class CommandLine:
    """`mcp-orchestrator` with settings of its own."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    async def start(
        self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mcp_orchestrator",
            *arguments,
            env=self.environment,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def __call__(self, *arguments: str) -> Ended:
        process = await self.start(*arguments)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        return Ended(process.returncode, out.decode(), err.decode())


Run = Callable[..., Coroutine[Any, Any, Ended]]


def surroundings(tmp_path: Path, instance: str, **settings: str) -> Environment:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "DATA_DIR": str(tmp_path / "data"), "INSTANCE_ID": instance, **settings}


@pytest.fixture(params=[kind for kind in KINDS if kind != "runsc"])
def command(request: pytest.FixtureRequest, tmp_path: Path, instance: str) -> CommandLine:
    settings = {"SANDBOX_BACKEND": request.param}
    if request.param == "docker":
        settings["DOCKER_HOST"] = request.getfixturevalue("engine")
        settings["SANDBOX_IMAGE"] = request.getfixturevalue("sandbox_image")
    return CommandLine(surroundings(tmp_path, instance, **settings))


async def test_a_command_runs_with_its_output_apart_and_its_exit_code(command: CommandLine) -> None:
    ended = await command("sandbox", "run", "--", "echo out; echo err >&2; exit 3")

    assert ended == Ended(3, "out\n", "err\n")


async def test_several_words_are_a_program_and_its_arguments(command: CommandLine) -> None:
    ended = await command("sandbox", "run", "--", "printf", "%s|", "a b", "$HOME", "-x")

    assert ended == Ended(0, "a b|$HOME|-x|", "")


async def test_output_comes_while_the_command_runs(command: CommandLine) -> None:
    process = await command.start("sandbox", "run", "--", "echo first; sleep 30")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"first\n"
    process.send_signal(2)
    async with asyncio.timeout(20):
        assert await process.wait() == 130


async def test_a_command_that_takes_too_long_is_ended_with_a_sentence(command: CommandLine) -> None:
    ended = await command("sandbox", "run", "--timeout", "1", "--", "echo begun; sleep 60")

    assert (ended.code, ended.out) == (124, "begun\n")
    assert ended.err.startswith("Timed out")
    assert "--timeout" in ended.err


async def test_long_output_comes_whole(command: CommandLine) -> None:
    ended = await command("sandbox", "run", "--", "seq 100000")

    assert ended == Ended(0, "".join(f"{number}\n" for number in range(1, 100_001)), "")


async def test_standard_input_is_given_on_request(command: CommandLine) -> None:
    process = await command.start("sandbox", "run", "--stdin", "--", "cat -n", stdin=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(b"one\ntwo\n"), 60)

    assert out.decode().split() == ["1", "one", "2", "two"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_polite_end_leaves_no_sandbox(command: CommandLine, number: signal.Signals) -> None:
    process = await command.start("sandbox", "run", "--", "echo first; sleep 30")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"first\n"
        process.send_signal(number)
        assert await process.wait() == 128 + number

    assert await command("sandbox", "list") == Ended(0, "", "")


async def test_what_a_kill_left_can_be_listed_and_removed(command: CommandLine) -> None:
    process = await command.start("sandbox", "run", "--", "echo first; sleep 30")
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"first\n"
        process.kill()
        await process.wait()

    listed = await command("sandbox", "list")
    removed = await command("sandbox", "remove")

    # A container outlives us; a bubblewrap sandbox does not.
    expected = 1 if command.environment["SANDBOX_BACKEND"] == "docker" else 0
    assert len(listed.out.splitlines()) == len(removed.out.splitlines()) == expected
    assert (await command("sandbox", "list")).out == ""


async def test_a_misspelt_option_is_ours_to_refuse(command: CommandLine) -> None:
    ended = await command("sandbox", "run", "--timeuot", "5", "--", "id")

    assert ended.code == 2
    assert "--timeuot" in ended.err


async def test_the_doctor_tells_programs_everything(command: CommandLine) -> None:
    ended = await command("doctor", "--json")
    report = json.loads(ended.out)

    assert ended.code == 0
    assert report["canServe"] is True
    assert report["chosen"] == command.environment["SANDBOX_BACKEND"]
    chosen = next(item for item in report["backends"] if item["backend"] == report["chosen"])
    assert {entry["name"] for entry in chosen["properties"]} >= {
        "no network",
        "no capabilities",
        "memory limit",
    }
    assert all(entry["held"] for entry in chosen["properties"] if entry["is_essential"])


async def test_the_bare_command_shows_the_verdict_and_a_sandbox(command: CommandLine) -> None:
    ended = await command()

    assert ended.code == 0
    assert "Tools can run here" in ended.out
    assert "Hello from inside a sandbox." in ended.out
    assert "uid=1000" in ended.out
    assert "\x1b" not in ended.out, "no colours into a pipe"


async def test_the_doctor_fails_and_says_the_next_step_when_the_named_back_end_is_down(
    tmp_path: Path, instance: str
) -> None:
    settings = {"SANDBOX_BACKEND": "docker", "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = await CommandLine(surroundings(tmp_path, instance, **settings))("doctor")

    assert ended.code == 1
    assert "No container engine answers" in ended.out
    assert "SANDBOX_BACKEND=bubblewrap" in ended.out


async def test_a_wrong_setting_stops_every_command_with_one_sentence(tmp_path: Path, instance: str) -> None:
    command = CommandLine(surroundings(tmp_path, instance, SANDBOX_MEMORY="lots"))

    for arguments in (["doctor"], ["sandbox", "run", "--", "true"], []):
        ended = await command(*arguments)
        assert (ended.code, ended.out) == (1, "")
        assert (
            ended.err
            == "mcp-orchestrator: SANDBOX_MEMORY=lots: not a size. An example: SANDBOX_MEMORY=512m\n"
        )


async def test_an_engine_that_was_pointed_at_is_never_replaced_by_less(tmp_path: Path, instance: str) -> None:
    command = CommandLine(surroundings(tmp_path, instance, DOCKER_HOST=f"unix://{tmp_path}/none.sock"))

    ended = await command("sandbox", "run", "--", "id")

    assert (ended.code, ended.out) == (1, "")
    assert "No container engine answers" in ended.err


@pytest.mark.parametrize("place", ["/proc/x", "/etc/passwd"])
async def test_a_data_folder_that_cannot_be_used_is_told(tmp_path: Path, instance: str, place: str) -> None:
    settings = surroundings(tmp_path, instance, DATA_DIR=place, SANDBOX_BACKEND="bubblewrap")
    del settings["INSTANCE_ID"]

    ended = await CommandLine(settings)("sandbox", "run", "--", "id")

    assert ended.code == 1
    assert ended.err.startswith(f"mcp-orchestrator: DATA_DIR={place}: ")


async def test_a_terminal_shows_control_characters_instead_of_obeying_them(
    tmp_path: Path, instance: str
) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mcp_orchestrator", "sandbox", "run", "--", r"printf '\033]0;PWNED\007'"),
        env=surroundings(tmp_path, instance, SANDBOX_BACKEND="bubblewrap"),
        stdout=theirs,
    )
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    shown = os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)

    assert shown == rb"\x1b]0;PWNED\x07"
