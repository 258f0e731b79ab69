"""Sandboxes without an engine: namespaces made by bubblewrap, limits by control groups."""
