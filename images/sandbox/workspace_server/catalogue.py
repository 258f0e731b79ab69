"""The tools as the client sees them: names, sentences for the model, and the shape of the arguments."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_PATH_TEXT = (
    "Path in the workspace, such as 'src/main.py' or '/workspace/src/main.py', as list_files shows it. "
    "Files elsewhere, /tmp included, cannot be reached by this tool."
)
_FOLDER_TEXT = "Directory in the workspace, such as 'src'; '.' is /workspace itself."
_TEXT_OR_BASE64 = {
    "type": "string",
    "enum": ["text", "base64"],
    "default": "text",
}


def _text(description: str, **more: object) -> Json:
    return {"type": "string", "description": description, **more}


def _whole(description: str, minimum: int, maximum: int, **more: object) -> Json:
    return {"type": "integer", "description": description, "minimum": minimum, "maximum": maximum, **more}


def _flag(description: str) -> Json:
    return {"type": "boolean", "description": description, "default": False}


def _path(**more: object) -> Json:
    return _text(_PATH_TEXT, minLength=1, maxLength=8192, **more)


def _tool(
    name: str, title: str, description: str, properties: Json, required: list[str], **hints: bool
) -> Json:
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "annotations": {"title": title, "openWorldHint": False, **hints},
    }


_READS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}

_EDIT = {
    "type": "object",
    "properties": {
        "old_text": _text("The exact text to replace, with enough around it to occur once.", minLength=1),
        "new_text": _text("What stands there afterwards."),
    },
    "required": ["old_text", "new_text"],
    "additionalProperties": False,
}

TOOLS: list[Json] = [
    _tool(
        "read_file",
        "Read a file",
        "Read a file of the workspace. At most 256 KiB are returned at a time; the answer says how to "
        "continue. Pictures (PNG, JPEG, GIF, WebP) are returned as pictures. Other binary files need "
        "encoding 'base64'.",
        {
            "path": _path(),
            "offset": _whole(
                "How many lines (text) or bytes (base64) to skip: to begin at line 10, skip 9.",
                0,
                2**53,
                default=0,
            ),
            "limit": _whole("How many lines (text) or bytes (base64) to return.", 1, 2**53),
            "encoding": {**_TEXT_OR_BASE64, "description": "How to return it."},
        },
        ["path"],
        **_READS,
    ),
    _tool(
        "write_file",
        "Write a file",
        "Create a file of the workspace or replace its whole content, all or nothing. Missing directories "
        "are made.",
        {
            "path": _path(),
            "content": _text("The whole new content, or what is added at the end when append is true."),
            "encoding": {**_TEXT_OR_BASE64, "description": "How the content is given."},
            "append": _flag("Add to the end of the file instead of replacing it."),
        },
        ["path", "content"],
        readOnlyHint=False,
        destructiveHint=True,
        idempotentHint=False,
    ),
    _tool(
        "edit_file",
        "Edit a file",
        "Replace exact pieces of text in a file of the workspace, all or nothing, and return the difference. "
        "Each old_text must occur exactly once, unless replace_all is true. Give either old_text and "
        "new_text, or edits.",
        {
            "path": _path(),
            "old_text": _EDIT["properties"]["old_text"],  # type: ignore[index]
            "new_text": _EDIT["properties"]["new_text"],  # type: ignore[index]
            "edits": {
                "type": "array",
                "description": "Several replacements, made one after the other.",
                "items": _EDIT,
                "minItems": 1,
                "maxItems": 100,
            },
            "replace_all": _flag("Replace every occurrence, of each old_text."),
        },
        ["path"],
        readOnlyHint=False,
        destructiveHint=True,
        idempotentHint=False,
    ),
    _tool(
        "list_files",
        "List files",
        "List a directory of the workspace: type, size in bytes and path of each entry, sorted. Symbolic "
        r"links are shown and not followed. Bytes that are not plain visible text are shown as \xNN and a "
        r"backslash as \\; paths are accepted in the same notation.",
        {
            "path": _text(_FOLDER_TEXT, minLength=1, maxLength=8192, default="."),
            "recursive": _flag("Also list what is in the directories below."),
            "max_entries": _whole("The most entries to return.", 1, 10_000, default=1000),
        },
        [],
        **_READS,
    ),
    _tool(
        "search_files",
        "Search in files",
        "Find the lines of text files in the workspace that contain a text or match a regular expression. "
        "Returns path:line:text for each, lines counted from 1. Upper and lower case differ. Hidden files "
        "are searched too; binary files, files over 4 MiB and symbolic links are skipped.",
        {
            "query": _text("The text to find, or a regular expression.", minLength=1, maxLength=4096),
            "path": _text(_FOLDER_TEXT, minLength=1, maxLength=8192, default="."),
            "regex": _flag("The query is a regular expression, in the syntax of Python."),
            "glob": _text(
                "Only files whose name or path matches, such as '*.py' or 'src/*'.", maxLength=1024
            ),
            "max_results": _whole("The most lines to return.", 1, 2000, default=200),
        },
        ["query"],
        **_READS,
    ),
    _tool(
        "execute_command",
        "Run a command",
        "Run a shell command in the sandbox and return its exit code, stdout and stderr; a non-zero exit "
        "code counts as an error. Each command starts anew in /workspace: cd and variables are not kept. "
        "There is no network, no root, and nothing can be installed; only /workspace and /tmp are writable, "
        "and both are small. Background processes are stopped when it ends. Of long output the beginning and "
        "the end are returned, and all of it is kept in a file below .output whose name is told.",
        {
            "command": _text("The command, as for bash -c, or sh -c where there is no bash.", minLength=1),
            "timeout_seconds": {
                "type": "number",
                "description": "After this time the command and all it started are killed.",
                "minimum": 0.1,
                "maximum": 3600,
                "default": 60,
            },
            "cwd": _text(
                "Directory in the workspace to run it in, such as 'src'.", maxLength=8192, default="."
            ),
            "env": {
                "type": "object",
                "description": "Environment variables to add.",
                "additionalProperties": {"type": "string"},
            },
            "stdin": _text("What the command reads from its standard input."),
        },
        ["command"],
        readOnlyHint=False,
        destructiveHint=True,
        idempotentHint=False,
    ),
]

SCHEMAS: dict[str, Json] = {tool["name"]: tool["inputSchema"] for tool in TOOLS}
