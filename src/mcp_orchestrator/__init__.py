"""A secure execution environment for AI agents."""
