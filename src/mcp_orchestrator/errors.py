"""The base of every error this project raises on purpose."""


class OrchestratorError(Exception):
    """Something failed in a way we foresaw; the message says what, and what to do."""
