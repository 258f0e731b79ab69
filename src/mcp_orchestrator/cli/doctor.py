"""`doctor`: what works here, property by property, and the next step for what does not."""

import json
import platform
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcp_orchestrator.sandbox import names, probe
from mcp_orchestrator.sandbox.backend import BackendUnavailable, SandboxError
from mcp_orchestrator.sandbox.factory import SandboxFactory
from mcp_orchestrator.sandbox.properties import Property
from mcp_orchestrator.tools.proof import open_proven_toolbox
from mcp_orchestrator.tools.results import ToolsError


class OpenSandboxes(Protocol):
    """How the commands get at sandboxes; the back end may be named."""

    def __call__(self, backend_name: str | None = None) -> AbstractAsyncContextManager[SandboxFactory]: ...


_BACKENDS = {
    "docker": "containers of an engine",
    "bubblewrap": "isolated processes, no engine; for your own machine only",
}


@dataclass
class Diagnosis:
    """What one back end can do here."""

    backend: str
    works: bool = False
    problem: str = ""
    start_ms: int | None = None
    image: str = ""
    runtime: str = ""
    tools: list[str] = field(default_factory=list)
    properties: list[Property] = field(default_factory=list)


async def show(open_sandboxes: OpenSandboxes, *, as_json: bool) -> int:
    """Examine and print; 1 when no tool could run here."""
    diagnoses, chosen = await examine(open_sandboxes)
    if as_json:
        sys.stdout.write(json.dumps(_document(diagnoses, chosen), indent=2) + "\n")
    else:
        _print(Console(highlight=False), diagnoses, chosen)
    return 0 if chosen and chosen.works else 1


async def examine(open_sandboxes: OpenSandboxes) -> tuple[list[Diagnosis], Diagnosis | None]:
    """Every back end, and the one the settings choose, if that works."""
    diagnoses = [await _diagnose(open_sandboxes, name) for name in _BACKENDS]
    try:
        async with open_sandboxes() as sandboxes:
            name = sandboxes.backend.name
    except BackendUnavailable:
        return diagnoses, None
    return diagnoses, next(item for item in diagnoses if item.backend == name)


async def _diagnose(open_sandboxes: OpenSandboxes, backend_name: str) -> Diagnosis:
    diagnosis = Diagnosis(backend_name)
    try:
        async with open_sandboxes(backend_name) as sandboxes:
            await _try_sandbox(sandboxes, diagnosis)
    except probe.SandboxUnsound as error:
        diagnosis.properties = error.broken
        diagnosis.problem = str(error)
    except (SandboxError, ToolsError) as error:
        diagnosis.problem = str(error)
    else:
        diagnosis.works = True
    return diagnosis


async def _try_sandbox(sandboxes: SandboxFactory, diagnosis: Diagnosis) -> None:
    spec = await sandboxes.spec(names.pool_name(sandboxes.instance))
    diagnosis.image, diagnosis.runtime = spec.image, spec.runtime
    started = time.monotonic()
    sandbox = await sandboxes.create(spec)
    try:
        async with open_proven_toolbox(sandbox, spec) as (toolbox, properties):
            diagnosis.start_ms = round((time.monotonic() - started) * 1000)
            diagnosis.tools = [tool.name for tool in toolbox.catalogue.tools]
            diagnosis.properties = list(properties)
    finally:
        await sandbox.remove()


def _document(diagnoses: list[Diagnosis], chosen: Diagnosis | None) -> dict[str, Any]:
    backends = [
        asdict(item) | {"properties": [entry._asdict() for entry in item.properties]} for item in diagnoses
    ]
    return {
        "version": version("mcp-orchestrator"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "canServe": bool(chosen and chosen.works),
        "chosen": chosen.backend if chosen else None,
        "backends": backends,
    }


def _print(console: Console, diagnoses: list[Diagnosis], chosen: Diagnosis | None) -> None:
    console.print(
        f"[bold]MCP Orchestrator[/bold] {version('mcp-orchestrator')}   "
        f"Python {platform.python_version()}   Linux {platform.release()} {platform.machine()}\n"
    )
    for item in diagnoses:
        _print_backend(console, item, is_chosen=item is chosen)
    console.print(_verdict(diagnoses, chosen), soft_wrap=True)


def _verdict(diagnoses: list[Diagnosis], chosen: Diagnosis | None) -> str:
    if chosen and chosen.works:
        return f"[green]Tools can run here[/green], isolated by {chosen.backend}."
    others = [item.backend for item in diagnoses if item.works]
    if others:
        # Never taken by itself: a weaker boundary is a person's decision.
        return (
            f"[red]No tool can run here[/red] with {chosen.backend if chosen else 'what is configured'}. "
            f"Repair it, or decide for {others[0]} with SANDBOX_BACKEND={others[0]}."
        )
    return "[red]No tool can run here[/red] until one of the above works."


def _print_backend(console: Console, item: Diagnosis, *, is_chosen: bool) -> None:
    mark = "[green]✓[/green]" if item.works else "[red]✗[/red]"
    use = "  [bold](chosen)[/bold]" if is_chosen else ""
    console.print(f"{mark} [bold]{item.backend}[/bold]  {_BACKENDS[item.backend]}{use}", soft_wrap=True)
    if item.problem:
        console.print(f"  {escape(item.problem)}\n", soft_wrap=True)
        return
    runtime = f", runtime {item.runtime}" if item.runtime else ""
    console.print(f"  sandbox ready in {item.start_ms} ms{runtime}", soft_wrap=True)
    if not is_chosen:
        console.print()
        return
    console.print(f"  tools: {', '.join(item.tools)}", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for entry in _worth_showing(item.properties):
        table.add_row(*_row(entry))
    console.print(table)
    console.print()


def _worth_showing(properties: list[Property]) -> list[Property]:
    """The engine's account is one line while it is as it should be."""
    engine = [entry for entry in properties if entry.name.startswith("engine: ")]
    shown = [entry for entry in properties if entry not in engine or not entry.held]
    held = sum(entry.held for entry in engine)
    if engine:
        shown.append(
            Property("engine's own account", held == len(engine), f"{held} of {len(engine)} lines as told")
        )
    return shown


def _row(entry: Property) -> tuple[str, str, str]:
    if entry.held:
        mark = "[green]✓[/green]"
    else:
        mark = "[red]✗[/red]" if entry.is_essential else "[yellow]![/yellow]"
    note = "" if entry.held else "[bold]does not hold[/bold]: "
    step = f"\n→ {entry.next_step}" if entry.next_step else ""
    return f"  {mark}", entry.name, f"{note}[dim]{escape(entry.seen)}[/dim]{step}"
