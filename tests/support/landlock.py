"""Which of the kernel's self-made fences are there."""

import ctypes

_CREATE_RULESET = 444
_ASK_VERSION = 1


def keeps_signals_in() -> bool:
    """Whether a process can be kept from signalling others: Landlock since Linux 6.12."""
    version = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return bool(version >= 6)
