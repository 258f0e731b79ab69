"""What a run left behind. Every name a test makes holds the run's own id, so others' things are not ours."""

from pathlib import Path

import psutil
from aiodocker import Docker

from mcp_orchestrator.sandbox.names import INSTANCE_LABEL


async def in_engine(host: str, run: str) -> list[str]:
    """Names of the run's containers that are still there, running or not."""
    async with Docker(url=host) as docker:
        containers = await docker.containers.list(all=True, filters={"label": [INSTANCE_LABEL]})
        names = [str(c["Names"][0]) for c in containers if c["Labels"][INSTANCE_LABEL].startswith(run)]
        if names:
            return names
        # Nobody else's containers have volumes in an engine of our own; in a person's they may.
        volumes = (await docker._query_json("volumes"))["Volumes"] or []
    return [f"volume {volume['Name']}" for volume in volumes if "mcpo-engine-" in str(volume["Mountpoint"])]


def on_this_machine(run: str) -> list[str]:
    """Our child processes, and mounts and cgroups with the run's id in their names."""
    processes = [
        f"process {child.pid}: {child.name()}" for child in psutil.Process().children(recursive=True)
    ]
    mounts = [
        f"mount {line.split()[4]}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if run in line
    ]
    cgroups = [f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"**/*{run}*")]
    return processes + mounts + cgroups
