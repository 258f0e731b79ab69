"""Start the command line, nothing else."""

from mcp_orchestrator.app import command_line


def main() -> None:
    command_line()()


if __name__ == "__main__":
    main()
