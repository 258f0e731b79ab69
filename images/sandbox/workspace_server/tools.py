"""From a call to the function that does it, loaded when first needed: an idle server stays small."""

from __future__ import annotations

import importlib
import sys

from arguments import check
from calls import ToolError, text
from catalogue import SCHEMAS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from calls import Call
    from loop import Loop
    from paths import Workspace

# Each is a function of that module with the tool's name. It answers the call, now or later, or raises.
_MODULES = {
    "read_file": "reading",
    "write_file": "writing",
    "edit_file": "writing",
    "list_files": "listing",
    "search_files": "searching",
    "execute_command": "commands",
}


class Toolbox:
    """The tools of one workspace."""

    def __init__(self, loop: Loop, workspace: Workspace) -> None:
        self._loop = loop
        self._workspace = workspace

    def start(self, call: Call) -> None:
        """Begin the call. What the tool cannot do becomes an answer that says so."""
        try:
            call.arguments = check(call.arguments, SCHEMAS[call.name])
            function = getattr(importlib.import_module(_MODULES[call.name]), call.name)
            function(call, self._loop, self._workspace)
        except ToolError as error:
            call.answer([text(str(error))], is_error=True)
        except OSError as error:
            call.answer([text(f"{error.strerror or error}.")], is_error=True)

    def stop(self) -> None:
        """Kill everything that runs."""
        processes = sys.modules.get("processes")
        if processes is not None:
            processes.kill_all()

    def usage(self) -> dict[str, int]:
        return self._workspace.usage()
