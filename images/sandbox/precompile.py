"""Lay out what the image adds to its base: the server, and bytecode for it and for the standard library.

A sandbox cannot write bytecode, its root is read-only: without this every start compiles every module anew,
at more than twice the CPU time. The bytecode is never checked against its source ("unchecked hash"), because
the source cannot change either, and because a date in it would make every build of the image a different one.
"""

import importlib.util
import os
import py_compile
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SERVER = Path("/opt/mcp/workspace_server")
WORKSPACE = Path("/workspace")
# Large, and nothing that runs in a sandbox needs them to start fast.
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "site-packages"}
EPOCH = 0


def main(layer: Path) -> None:
    for module in sorted(below(layer, SERVER).rglob("*.py")):
        compile_into(layer, module, Path("/") / module.relative_to(layer))
    for module in sorted(library_modules()):
        compile_into(layer, module, module)
    # It exists in the image so that a file system can be mounted there, which takes over its mode.
    below(layer, WORKSPACE).mkdir()
    below(layer, WORKSPACE).chmod(0o1777)
    for path in [layer, *layer.rglob("*")]:
        os.utime(path, (EPOCH, EPOCH))


def library_modules() -> Iterator[Path]:
    """Modules of the standard library whose base image came without their bytecode."""
    library = Path(sysconfig.get_path("stdlib"))
    for module in library.rglob("*.py"):
        is_wanted = LEFT_OUT.isdisjoint(module.relative_to(library).parts)
        if is_wanted and not Path(importlib.util.cache_from_source(module)).exists():
            yield module


def compile_into(layer: Path, source: Path, installed: Path) -> None:
    target = below(layer, Path(importlib.util.cache_from_source(installed)))
    py_compile.compile(
        str(source),
        cfile=str(target),
        dfile=str(installed),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def below(layer: Path, path: Path) -> Path:
    return layer / path.relative_to("/")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
