"""Paths that cannot leave the workspace, and names that can be shown and given back.

A path is walked from the root directory, one name at a time, each opened without following a symbolic link.
What is checked is therefore what is opened: nothing can be swapped in between.

A name is shown with every byte that is not plain visible text as `\\xNN`, and a backslash as `\\\\`. Paths
are read in the same notation, so each shown name leads back to its file, whatever bytes it has.
"""

from __future__ import annotations

import errno
import os
import stat

from calls import ToolError

# O_NONBLOCK: opening a pipe must not wait for the other end. O_NOCTTY: nor may a terminal become ours.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link, and links are not followed",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Workspace:
    """The one directory tree that the tools may touch."""

    def __init__(self, root: str) -> None:
        self.root = os.path.normpath(root)
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, path: str, *, create: bool = False) -> int:
        """Return a descriptor of the directory, which the caller closes.

        Raises:
            ToolError: there is none, or the way to it leaves the workspace or crosses a symbolic link.
        """
        return self._walk(self._split(path), path, create=create)

    def open_parent(self, path: str, *, create: bool = False) -> tuple[int, bytes]:
        """Return a descriptor of the directory that holds the path, and the last name in it."""
        names = self._split(path)
        if not names:
            raise ToolError(f"{path!r} is a directory, not a file.")
        return self._walk(names[:-1], path, create=create), names[-1]

    def open_file(self, path: str) -> tuple[int, os.stat_result]:
        """Return a descriptor of the regular file, open for reading, and what is known of it.

        Raises:
            ToolError: there is none, or it is anything else. Never waits, whatever it is.
        """
        parent, name = self.open_parent(path)
        try:
            fd = os.open(name, FILE_FLAGS, dir_fd=parent)
        except OSError as error:
            raise self._refusal(error, path, parent, name) from None
        finally:
            os.close(parent)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise ToolError(f"{path!r} is {kind_of(status.st_mode)}; only regular files are accepted.")
        return fd, status

    def relative(self, path: str, *, up: int = 0) -> str:
        """Return the path from the root, as it is shown; without so many names at its end."""
        names = self._split(path)
        return "/".join(shown(name) for name in names[: len(names) - up])

    def usage(self) -> dict[str, int]:
        """What the workspace holds now, as the file system counts it."""
        now = os.fstatvfs(self._fd)
        return {"bytes": (now.f_blocks - now.f_bfree) * now.f_frsize, "files": now.f_files - now.f_ffree}

    def _split(self, path: str) -> list[bytes]:
        """Return the names from the root to the path."""
        raw = to_bytes(path)
        if b"\0" in raw:
            raise ToolError("A path cannot contain a NUL character.")
        if raw.startswith(b"/"):
            root = os.fsencode(self.root)
            if raw != root and not raw.startswith(root + b"/"):
                raise ToolError(f"{path!r} is outside {self.root}. Give a path in it, such as 'notes.txt'.")
            raw = raw[len(root) :]
        names = [name for name in raw.split(b"/") if name not in (b"", b".")]
        if b".." in names:
            raise ToolError(f"{path!r} contains '..'. Give the path from {self.root} without it.")
        return names

    def _walk(self, names: list[bytes], path: str, *, create: bool) -> int:
        here = os.dup(self._fd)
        for name in names:
            try:
                below = self._step(here, name, create=create)
            except OSError as error:
                raise self._refusal(error, path, here, name) from None
            finally:
                os.close(here)
            here = below
        return here

    @staticmethod
    def _step(here: int, name: bytes, *, create: bool) -> int:
        try:
            return enter(here, name)
        except FileNotFoundError:
            if not create:
                raise
        try:
            os.mkdir(name, 0o755, dir_fd=here)
        except FileExistsError:
            pass  # made by someone else meanwhile; opening it says whether it is a directory
        return enter(here, name)

    @staticmethod
    def _refusal(error: OSError, path: str, parent: int, name: bytes) -> ToolError:
        """Say what stands in the way, at the name where the walk stopped."""
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            try:
                mode = os.lstat(name, dir_fd=parent).st_mode
            except (OSError, TypeError):
                return refusal(error, path)
            return ToolError(f"{path!r} cannot be used: {shown(name)!r} is {kind_of(mode)}.")
        return refusal(error, path)


def enter(here: int, name: bytes) -> int:
    """Return a descriptor of the directory of that name in this one; never follows a symbolic link.

    Without O_DIRECTORY: together with it, gVisor's kernel takes O_NOFOLLOW for nothing.

    Raises:
        OSError: there is none, or it is something else.
    """
    fd = os.open(name, FILE_FLAGS, dir_fd=here)
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return fd


def refusal(error: OSError, path: str) -> ToolError:
    """Turn an error of the system into a sentence that the model can act on."""
    return ToolError(f"{path!r}: {error.strerror}.")


def kind_of(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a regular file")


def shown(name: bytes) -> str:
    """Write a name as visible text from which `to_bytes` gets the same bytes back."""
    text = "".join(_shown_character(character) for character in name.decode("utf-8", "surrogateescape"))
    if text.endswith(" "):
        text = text[:-1] + "\\x20"
    return "\\x20" + text[1:] if text.startswith(" ") else text


def to_bytes(path: str) -> bytes:
    """Read a path in the notation of `shown`. A backslash that begins no escape stands for itself.

    Raises:
        ToolError: it escapes a plain visible character, which would only hide what is meant.
    """
    raw = bytearray()
    rest = path
    while rest:
        plain, backslash, rest = rest.partition("\\")
        try:
            raw += plain.encode()
        except UnicodeEncodeError:
            raise ToolError("The path is not valid Unicode. Write such bytes as \\xNN.") from None
        if rest.startswith("\\"):
            raw += b"\\"
            rest = rest[1:]
        elif rest.startswith("x") and _is_hex(rest[1:3]):
            raw.append(_escaped_byte(rest[1:3]))
            rest = rest[3:]
        elif backslash:
            raw += b"\\"
    return bytes(raw)


def _shown_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _is_hex(digits: str) -> bool:
    return len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _escaped_byte(digits: str) -> int:
    byte = int(digits, 16)
    if 0x21 <= byte <= 0x7E:
        raise ToolError(f"Write {chr(byte)!r} as it is in a path, not as \\x{digits}.")
    return byte
