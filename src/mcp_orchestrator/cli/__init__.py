"""The command line: one of the edges. Reads arguments, hands over, prints. No decisions here."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Annotated, Any

import typer

from mcp_orchestrator.cli import demonstration, doctor, leftovers, sandbox_run
from mcp_orchestrator.cli.doctor import OpenSandboxes
from mcp_orchestrator.errors import OrchestratorError


def command_line(open_sandboxes: OpenSandboxes) -> typer.Typer:
    """All commands, on top of what makes sandboxes here."""
    commands = typer.Typer(
        help="A secure execution environment for AI agents.",
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    sandboxes = typer.Typer(help="Try the sandbox alone.", no_args_is_help=True)
    commands.add_typer(sandboxes, name="sandbox")

    @commands.callback(invoke_without_command=True)
    def start(
        context: typer.Context,
        is_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    ) -> None:
        if is_version:
            typer.echo(f"mcp-orchestrator {version('mcp-orchestrator')}")
        elif context.invoked_subcommand is None:
            _run(lambda: demonstration.show(open_sandboxes))

    @commands.command("doctor", help="What works here, and the next step for what does not.")
    def doctor_command(
        as_json: Annotated[
            bool, typer.Option("--json", help="For programs: everything that was seen.")
        ] = False,
    ) -> None:
        _run(lambda: doctor.show(open_sandboxes, as_json=as_json))

    @sandboxes.command(
        "run",
        help="Run one command in a fresh sandbox, through the whole way a tool call takes.",
        # What comes after the first word of the command belongs to the command.
        context_settings={"allow_interspersed_args": False},
    )
    def run_command(
        command: Annotated[
            list[str], typer.Argument(help="The command; put -- before it.", metavar="COMMAND...")
        ],
        timeout_seconds: Annotated[
            float, typer.Option("--timeout", min=1, max=3600, help="Seconds the command may take.")
        ] = 60,
        takes_input: Annotated[
            bool, typer.Option("--stdin", "-i", help="Give it our standard input: text, up to 1 MB.")
        ] = False,
    ) -> None:
        _run(lambda: sandbox_run.run(open_sandboxes, command, timeout_seconds, takes_input=takes_input))

    @sandboxes.command("list", help="The sandboxes of this instance that are there now.")
    def list_command() -> None:
        _run(lambda: leftovers.show(open_sandboxes))

    @sandboxes.command("remove", help="Remove all sandboxes of this instance, also those in use.")
    def remove_command() -> None:
        _run(lambda: leftovers.remove(open_sandboxes))

    return commands


def _run(work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run one command to its exit code; a foreseen failure is a sentence, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows another one; that is no reason to fail.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = asyncio.run(_until_told_to_stop(work()))
        sys.stdout.flush()
    except OrchestratorError as error:
        typer.echo(f"mcp-orchestrator: {error}", err=True)
        code = 1
    except BrokenPipeError:
        # Who read our output has gone; Python would complain once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


async def _until_told_to_stop(work: Coroutine[Any, Any, int]) -> int:
    """Be as tidy at SIGTERM and SIGHUP as at Ctrl-C: what was begun is cleaned up."""
    received: list[int] = []
    task = asyncio.ensure_future(work)

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
