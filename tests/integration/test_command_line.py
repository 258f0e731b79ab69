"""The command as a person types it: a process of its own, its output and its exit code."""

import asyncio
import json
import os
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

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "mcp_orchestrator",
            *arguments,
            env=self.environment,
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
    ended = await command("sandbox", "run", "--timeout", "1", "--", "sleep 60")

    assert ended.code == 1
    assert "Timed out" in ended.err


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
