"""MCP over the standard streams of a sandbox: connect, list, call, close."""
