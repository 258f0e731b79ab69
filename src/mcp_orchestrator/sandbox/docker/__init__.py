"""Sandboxes as containers of an engine."""
