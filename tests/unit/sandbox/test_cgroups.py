"""Control groups of both versions, on directory trees that only look like them.

The first version also runs for real in the integration tests. The second could not be
tried on the machine this was written on: what is tested here is which files are written.
"""

import os
from pathlib import Path

import pytest

from mcp_orchestrator.sandbox.backend import MIB, SandboxConflict, SandboxLimits
from mcp_orchestrator.sandbox.bubblewrap.cgroups import (
    NO_GROUPS,
    FirstVersion,
    Hierarchy,
    SecondVersion,
    Usage,
    find_hierarchy,
)

LIMITS = SandboxLimits(memory_bytes=64 * MIB, cpus=0.5, processes=32)
FIRST_OWN = "5:memory:/ours\n4:pids:/\n3:cpu,cpuacct:/\n2:freezer:/\n1:name=systemd:/\n0::/\n"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    for name in ("memory/ours", "pids", "cpu,cpuacct", "freezer", "unified"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A service of ours that the system has handed over: we are alone in it."""
    make_second(tmp_path, "", controllers="cpu memory pids io", enabled="memory pids", members="")
    make_second(tmp_path, "app.slice", controllers="cpu memory pids", enabled="memory pids", members="")
    make_second(tmp_path, "app.slice/ours.service", "cpu memory pids", "", f"{os.getpid()}\n")
    return tmp_path


def make_second(top: Path, path: str, controllers: str, enabled: str, members: str) -> None:
    directory = top / path
    directory.mkdir(exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers + "\n")
    (directory / "cgroup.subtree_control").write_text(enabled + "\n")
    (directory / "cgroup.procs").write_text(members)


def first_mounts(top: Path) -> str:
    names = ("memory", "pids", "cpu,cpuacct", "freezer")
    lines = [
        f"3{at} 25 0:2{at} / {top}/{name} rw shared:9 - cgroup cgroup rw,{name}"
        for at, name in enumerate(names)
    ]
    return "\n".join(
        [*lines, f"40 25 0:40 / {top}/unified rw - cgroup2 cgroup2 rw", "1 1 8:1 / / rw - ext4 /dev/a rw"]
    )


def second_mounts(top: Path) -> str:
    return f"30 24 0:26 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_the_first_version_is_found_by_controller_below_our_own_group(first: Path) -> None:
    found = find_hierarchy(FIRST_OWN, first_mounts(first))

    assert found.version == 1
    assert found.parents == {
        "cpu": first / "cpu,cpuacct",
        "cpuacct": first / "cpu,cpuacct",
        "freezer": first / "freezer",
        "memory": first / "memory/ours",
        "pids": first / "pids",
    }


def test_of_two_mounts_of_one_tree_the_first_counts(first: Path) -> None:
    elsewhere = f"90 25 0:20 / {first}/pids rw - cgroup cgroup rw,memory\n"
    found = find_hierarchy(FIRST_OWN, f"{first_mounts(first)}\n{elsewhere}")
    assert found.parents["memory"] == first / "memory/ours"


def test_a_container_that_sees_only_its_part_of_the_tree_finds_its_place(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    mount = f"31 25 0:27 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    assert find_hierarchy("5:memory:/docker/abc\n", mount).parents == {"memory": tmp_path / "memory"}


def test_a_machine_without_writable_groups_has_none(tmp_path: Path) -> None:
    mount = f"31 25 0:27 / {tmp_path}/absent ro - cgroup cgroup rw,memory\n"
    assert find_hierarchy("5:memory:/\n0::/\n", mount) == NO_GROUPS
    assert find_hierarchy("", "") == NO_GROUPS


def test_limits_of_the_first_version_are_written_and_read_back(first: Path) -> None:
    group = find_hierarchy(FIRST_OWN, first_mounts(first)).group("box")
    group.make()
    (first / "memory/ours/box/memory.memsw.limit_in_bytes").touch()
    group.limit(LIMITS)

    assert (first / "memory/ours/box/memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (first / "memory/ours/box/memory.memsw.limit_in_bytes").read_text() == str(64 * MIB), "no swap"
    assert (first / "pids/box/pids.max").read_text() == "32"
    assert (first / "cpu,cpuacct/box/cpu.cfs_quota_us").read_text() == "50000"
    assert group.limits() == group.expected(LIMITS)
    assert group.expected(SandboxLimits()) != group.limits()


def test_a_directory_for_two_controllers_is_joined_once(first: Path) -> None:
    group = find_hierarchy(FIRST_OWN, first_mounts(first)).group("box")
    assert sorted(group.joining_files) == [
        first / "cpu,cpuacct/box/cgroup.procs",
        first / "freezer/box/cgroup.procs",
        first / "memory/ours/box/cgroup.procs",
        first / "pids/box/cgroup.procs",
    ]


def test_the_first_version_freezes_counts_and_tells_of_lacking_memory(tmp_path: Path) -> None:
    group = FirstVersion(dict.fromkeys(("memory", "pids", "cpuacct", "freezer"), tmp_path))
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("4096\n")
    (tmp_path / "pids.current").write_text("3\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")

    assert group.usage() == Usage(cpu_seconds=2.5, memory_bytes=4096, processes=3)
    assert group.has_run_out_of_memory
    group.freeze(True)
    assert (tmp_path / "freezer.state").read_text() == "FROZEN"
    assert group.is_frozen
    group.freeze(False)
    assert (tmp_path / "freezer.state").read_text() == "THAWED"


def test_alone_in_a_group_that_was_handed_over_we_make_room_and_use_it(second: Path) -> None:
    found = find_hierarchy("0::/app.slice/ours.service\n", second_mounts(second))
    ours = second / "app.slice/ours.service"

    assert found == Hierarchy(2, {"cpu": ours, "memory": ours, "pids": ours})
    assert (ours / "mcp-orchestrator/cgroup.procs").read_text() == str(os.getpid())
    assert (ours / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_from_the_leaf_we_went_into_we_find_the_same_group_again(second: Path) -> None:
    first_time = find_hierarchy("0::/app.slice/ours.service\n", second_mounts(second))
    again = find_hierarchy("0::/app.slice/ours.service/mcp-orchestrator\n", second_mounts(second))

    assert again.parents == first_time.parents


def test_a_process_that_is_not_ours_is_never_moved(second: Path) -> None:
    (second / "app.slice/ours.service/cgroup.procs").write_text(f"{os.getpid()}\n1\n")
    find_hierarchy("0::/app.slice/ours.service\n", second_mounts(second))
    assert not (second / "app.slice/ours.service/mcp-orchestrator").exists()


def test_a_group_above_ours_does_if_it_was_handed_over(second: Path) -> None:
    make_second(second, "app.slice/ours.service", controllers="", enabled="", members=f"{os.getpid()}\n1\n")
    found = find_hierarchy("0::/app.slice/ours.service\n", second_mounts(second))
    assert found.version == 2
    assert set(found.parents.values()) == {second / "app.slice"}
    assert {"memory", "pids"} <= found.controllers


def test_the_search_does_not_leave_the_mounted_tree(tmp_path: Path) -> None:
    make_second(tmp_path, "", controllers="memory pids", enabled="memory pids", members="")
    (tmp_path / "top/ours").mkdir(parents=True)
    mounts = second_mounts(tmp_path / "top")
    assert find_hierarchy("0::/ours\n", mounts) == NO_GROUPS


def test_a_second_version_without_memory_leaves_the_choice_to_the_first(first: Path) -> None:
    (first / "unified/cgroup.controllers").write_text("\n")
    assert find_hierarchy(FIRST_OWN, first_mounts(first)).version == 1


def test_limits_of_the_second_version_are_written_and_read_back(tmp_path: Path) -> None:
    group = SecondVersion(tmp_path / "box", frozenset({"memory", "pids", "cpu"}))
    group.make()
    for name in ("memory.swap.max", "memory.oom.group"):
        (tmp_path / "box" / name).touch()
    group.limit(LIMITS)

    written = {path.name: path.read_text() for path in (tmp_path / "box").iterdir()}
    assert written == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "0",
        "pids.max": "32",
        "cpu.max": "50000 100000",
    }
    assert group.limits() == group.expected(LIMITS)


def test_a_controller_that_was_not_handed_over_is_left_alone(tmp_path: Path) -> None:
    group = SecondVersion(tmp_path / "box", frozenset({"memory"}))
    group.make()
    group.limit(LIMITS)
    assert [path.name for path in (tmp_path / "box").iterdir()] == ["memory.max"]
    assert set(group.expected(LIMITS)) == {"memory"}


def test_the_second_version_freezes_counts_and_tells_of_lacking_memory(tmp_path: Path) -> None:
    group = SecondVersion(tmp_path, frozenset({"memory", "pids"}))
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("8192\n")
    (tmp_path / "pids.current").write_text("4\n")
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")

    assert group.usage() == Usage(cpu_seconds=1.5, memory_bytes=8192, processes=4)
    assert group.has_run_out_of_memory
    assert group.is_frozen
    group.freeze(True)
    assert (tmp_path / "cgroup.freeze").read_text() == "1"


def test_a_group_with_somebody_in_it_is_not_taken_over(tmp_path: Path) -> None:
    group = SecondVersion(tmp_path / "box", frozenset({"memory"}))
    group.make()
    (tmp_path / "box/cgroup.procs").write_text("1\n")
    with pytest.raises(SandboxConflict):
        group.make()


def test_a_group_that_is_gone_uses_nothing_and_is_removed_again_without_complaint(tmp_path: Path) -> None:
    group = SecondVersion(tmp_path / "box", frozenset({"memory"}))
    assert group.usage() == Usage(0, 0, 0)
    assert group.members() == []
    assert group.remove()
    group.make()
    assert group.remove()
    assert not (tmp_path / "box").exists()
