"""The command line: one of the edges. Reads arguments, hands over, prints. No decisions here."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Protocol

import typer

from mcp_orchestrator.cli import demonstration, doctor, sandbox_run
from mcp_orchestrator.errors import OrchestratorError
from mcp_orchestrator.sandbox.factory import SandboxFactory


class OpenSandboxes(Protocol):
    """How the commands get at sandboxes; the back end may be named."""

    def __call__(self, backend_name: str | None = None) -> AbstractAsyncContextManager[SandboxFactory]: ...


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
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
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
        context_settings={"ignore_unknown_options": True},
    )
    def run_command(
        command: Annotated[
            list[str], typer.Argument(help="The command; put -- before it.", metavar="-- CMD")
        ],
        timeout_seconds: Annotated[
            float, typer.Option("--timeout", min=1, max=3600, help="Seconds the command may take.")
        ] = 60,
    ) -> None:
        _run(lambda: sandbox_run.run(open_sandboxes, command, timeout_seconds))

    return commands


def _run(work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run one command to its exit code; a foreseen failure is a sentence, not a traceback."""
    try:
        code = asyncio.run(work())
    except OrchestratorError as error:
        typer.echo(f"mcp-orchestrator: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)
