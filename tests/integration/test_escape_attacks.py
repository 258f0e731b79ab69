"""The ways out of a sandbox, each tried from inside. The numbers are those of the threat catalogue."""

import asyncio

import pytest

from tests.support.attacks import attack, shell
from tests.support.workshop import Workshop

# Under gVisor some calls succeed, on gVisor's own kernel: nothing of them reaches the host's. The tests name each.
REFUSED = {
    "ENXIO",
    "EPERM",
    "EACCES",
    "ENOSYS",
    "EROFS",
    "EINVAL",
    "ENODEV",
    "ENOENT",
    "EAFNOSUPPORT",
    "ESRCH",
}


async def test_e01_no_capability_is_left(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "result = {l.split(':')[0]: l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')}",
        )

    assert len(seen) >= 4
    assert {int(value, 16) for value in seen.values()} == {0}


async def test_e02_a_setuid_program_gives_nothing(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "import shutil, subprocess\n"
            "shutil.copy('/usr/bin/id', '/workspace/id'); os.chmod('/workspace/id', 0o6755)\n"
            "run = subprocess.run(['/workspace/id', '-u'], capture_output=True, text=True)\n"
            "result = [run.stdout.strip(), call('setuid', 0), os.geteuid(), os.getresuid()]",
        )

    assert seen[0] == "1000"
    assert seen[1] in REFUSED
    assert seen[2:] == [1000, [1000, 1000, 1000]]


async def test_e03_the_user_is_ours_and_has_no_other_groups(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "result = [os.getuid(), os.getgid(), sorted(set(os.getgroups())), attempt(lambda: os.setgroups([0]))]",
        )

    assert seen[:2] == [1000, 1000]
    # An unmapped group of the host shows as 65534 and gives no right to anything.
    assert set(seen[2]) <= {1000}
    assert seen[3] in REFUSED


async def test_e04_the_file_system_cannot_be_rearranged(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "result = [call('mount', b'none', b'/workspace', b'tmpfs', 0, 0), call('umount2', b'/workspace', 0),\n"
            "  call('pivot_root', b'/workspace', b'/workspace'), call('chroot', b'/workspace'),\n"
            "  attempt(lambda: os.mknod('/workspace/sda', 0o60600, os.makedev(8, 0))),\n"
            "  call('fsopen', b'tmpfs', 0), call('move_mount', 0, b'', 0, b'', 0)]",
        )
        if workshop.kind == "runsc":  # it makes the node, and there is no device behind it
            assert seen.pop(4) == "None"
            assert (
                await attack(toolbox, "result = attempt(lambda: open('/workspace/sda', 'rb').read(1))")
                in REFUSED
            )

    assert set(seen) <= REFUSED


async def test_e05_no_namespaces_can_be_made(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
            "result = [call('unshare', flag) for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000)]\n"
            "result += [call('clone3', ctypes.byref(args), ctypes.sizeof(args))]",
        )

    if workshop.kind == "runsc":  # inside gVisor they are gVisor's own, of which the host knows nothing
        assert set(seen[1:]) <= REFUSED | {"done"}
    else:
        assert set(seen) <= REFUSED


async def test_e06_dangerous_system_calls_are_refused(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "attr = ctypes.create_string_buffer(128)\n"
            "result = {\n"
            "  'bpf': call('bpf', 0, attr, 128), 'perf': call('perf_event_open', attr, 0, -1, -1, 0),\n"
            "  'add_key': call('add_key', b'user', b'k', b'v', 1, -3), 'keyctl': call('keyctl', 0, -3, 1),\n"
            "  'userfaultfd': call('userfaultfd', 0), 'handle': call('open_by_handle_at', -100, attr, 0),\n"
            "  'kexec': call('kexec_load', 0, 0, 0, 0), 'module': call('init_module', attr, 8, b''),\n"
            "  'setns': call('setns', 0, 0), 'reboot': call('reboot', 0, 0, 0, 0), 'swapon': call('swapon', b'/x', 0),\n"
            "  'time': call('settimeofday', attr, 0), 'hostname': call('sethostname', b'x', 1),\n"
            "  'vm_read': call('process_vm_readv', os.getppid(), attr, 1, attr, 1, 0)}",
        )

    virtual = {"handle", "setns"} if workshop.kind == "runsc" else set()
    assert {name for name, answer in seen.items() if answer not in REFUSED} <= virtual


async def test_e07_io_uring_is_refused(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(toolbox, "result = call('io_uring_setup', 8, ctypes.create_string_buffer(256))")

    assert seen in {"EPERM", "ENOSYS"} or (seen == "done" and workshop.kind == "runsc")


_SOCKETCALL_32 = """
import mmap
# int 0x80 with eax=102 (socketcall), ebx=1 (SYS_SOCKET), ecx=arguments below 4 GiB
MAP_32BIT = 0x40
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
page = libc.mmap(None, 4096, 7, 0x22 | MAP_32BIT, -1, 0)
code = b'\\x53\\xb8\\x66\\0\\0\\0\\xbb\\1\\0\\0\\0\\xb9' + (page + 2048).to_bytes(4, 'little') + b'\\xcd\\x80\\x5b\\xc3'
ctypes.memmove(page, code, len(code))
ctypes.memmove(page + 2048, b'\\x28\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0', 12)
pid = os.fork()
if pid == 0:
    before = os.listdir('/proc/self/fd')
    ctypes.CFUNCTYPE(ctypes.c_int)(page)()
    os._exit(77 if len(os.listdir('/proc/self/fd')) > len(before) else 0)
status = os.waitpid(pid, 0)[1]
result = 'opened' if os.waitstatus_to_exitcode(status) == 77 else 'refused'
"""


async def test_e08_only_ordinary_sockets_can_be_opened(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "def kind(family, type=socket.SOCK_STREAM):\n"
            "    return attempt(lambda: socket.socket(family, type).close())\n"
            "result = {'vsock': kind(40), 'netlink': kind(16, 3), 'packet': kind(17, 3), 'alg': kind(38, 5),\n"
            "  'bluetooth': kind(31, 3), 'xdp': kind(44, 3), 'unix': kind(1), 'inet': kind(2), 'inet6': kind(10)}",
        )
        machine = await attack(toolbox, "result = platform.machine()")
        by_32_bit = await attack(toolbox, _SOCKETCALL_32) if machine == "x86_64" else "refused"

    odd = ["vsock", "packet", "alg", "bluetooth", "xdp"]
    if workshop.kind != "runsc":  # gVisor's netlink is its own and shows its own empty network
        odd.append("netlink")
    assert {name: seen[name] for name in odd if seen[name] not in REFUSED} == {}
    assert seen["unix"] == "None"
    assert by_32_bit == "refused"


async def test_e09_nothing_outside_the_workspace_can_be_written(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "result = []\n"
            "for folder, folders, files in os.walk('/'):\n"
            "    if folder in ('/workspace', '/tmp', '/dev/shm', '/proc'):\n"
            "        folders.clear(); continue\n"
            "    try:\n"
            "        os.close(os.open(folder + '/x', os.O_CREAT | os.O_WRONLY)); result.append(folder)\n"
            "    except OSError: pass\n",
            seconds=120,
        )

    # In gVisor /proc/sys and /sys do not exist as the host's; in all of them nothing may be created.
    assert [folder for folder in seen if not folder.startswith("/dev/pts")] == []


async def test_e10_the_kernel_cannot_be_read_or_tuned(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "def peek(path):\n"
            "    return attempt(lambda: open(path, 'rb').read(1) or 'empty')\n"
            "def poke(path):\n"
            "    return attempt(lambda: os.close(os.open(path, os.O_WRONLY)))\n"
            "result = {'kcore': peek('/proc/kcore'), 'sysrq': poke('/proc/sysrq-trigger'),\n"
            "  'core_pattern': poke('/proc/sys/kernel/core_pattern'), 'modprobe': poke('/proc/sys/kernel/modprobe'),\n"
            "  'uevent': poke('/sys/kernel/uevent_helper'), 'mem': poke('/sys/fs/cgroup/memory/memory.limit_in_bytes'),\n"
            "  'mem2': poke('/sys/fs/cgroup/memory.max'), 'release': poke('/sys/fs/cgroup/memory/release_agent')}",
        )

    allowed = REFUSED | {"'empty'"}
    assert {name: answer for name, answer in seen.items() if answer not in allowed} == {}


async def test_e11_there_are_no_devices_of_the_host(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "result = {name: attempt(lambda: open('/dev/' + name, 'rb').close())\n"
            "  for name in ('vda', 'sda', 'mem', 'kmem', 'kmsg', 'kvm', 'fuse', 'port', 'net/tun', 'loop0')}",
        )
        listed = await attack(toolbox, "result = sorted(os.listdir('/dev'))")

    virtual = {"fuse", "net/tun"} if workshop.kind == "runsc" else set()
    assert {name for name, answer in seen.items() if answer not in REFUSED} <= virtual
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue", "console"}
    assert set(listed) <= harmless | {"fd", "stdin", "stdout", "stderr", "core", "fuse", "net"}


async def test_e12_nothing_writable_of_the_host_is_mounted(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        mounts = await attack(
            toolbox,
            "result = [[m[4], m[5], m[m.index('-') + 1]] for m in map(str.split, open('/proc/self/mountinfo'))]",
        )
        found = await attack(
            toolbox,
            "result = [p for p in ('/var/run/docker.sock', '/run/docker.sock', '/run/redis', '/host')\n"
            "  if os.path.exists(p)]",
        )

    memory = {"tmpfs", "devtmpfs", "devpts", "proc", "sysfs", "cgroup", "cgroup2", "mqueue"}
    from_disk = {point: options for point, options, kind in mounts if kind not in memory}
    if workshop.kind == "runsc":  # gVisor calls its root rw and refuses all the same: e09
        from_disk.pop("/", None)
    assert found == []
    assert {point for point, options in from_disk.items() if not options.startswith("ro")} == set()
    if workshop.kind == "docker":  # the engine's own files, read-only
        engine_files = {"/", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
        engine_files |= {"/sbin/docker-init", "/usr/sbin/docker-init"}
        assert set(from_disk) - engine_files == set()


async def test_e13_there_is_no_network(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "def reach(address):\n"
            "    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:\n"
            "        s.settimeout(2); s.connect(address)\n"
            "interfaces = [l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l]\n"
            "result = {'interfaces': interfaces, 'tcp': attempt(lambda: reach(('192.0.2.1', 80))),\n"
            "  'local': attempt(lambda: reach(('10.0.0.1', 22))), 'metadata': attempt(lambda: reach(('169.254.169.254', 80))),\n"
            "  'name': attempt(lambda: socket.getaddrinfo('example.com', 80)),\n"
            "  'routes': [l for l in open('/proc/net/route')][1:] if os.path.exists('/proc/net/route') else []}",
        )

    assert seen["interfaces"] == ["lo"]
    assert seen["routes"] == []
    unreachable = {"ENETUNREACH", "EHOSTUNREACH", "ETIMEDOUT", "ECONNREFUSED", "refused"}
    assert {seen["tcp"], seen["local"], seen["metadata"]} <= unreachable
    assert not seen["name"].startswith("[")


async def test_e14_and_e15_two_sandboxes_know_nothing_of_each_other(workshop: Workshop) -> None:
    async with workshop.toolbox() as one, workshop.toolbox() as other:
        await attack(
            one,
            "import threading\n"
            "open('/dev/shm/left', 'w').write('x'); open('/tmp/left', 'w').write('x')\n"
            "s = socket.socket(socket.AF_UNIX); s.bind('\\0left')\n"
            "libc.shmget(4711, 4096, 0o1666); libc.msgget(4711, 0o1666)\n"
            "result = True",
        )
        held = "import socket, time; s = socket.socket(1); s.bind('\\0held'); s.listen(); time.sleep(5)"
        holding = asyncio.create_task(shell(one, f'python3 -c "{held}"'))
        seen = await attack(
            other,
            "result = {'files': [p for p in ('/dev/shm/left', '/tmp/left') if os.path.exists(p)],\n"
            "  'abstract': attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0held')),\n"
            "  'shm': libc.shmget(4711, 4096, 0), 'queue': libc.msgget(4711, 0),\n"
            "  'pids': [int(p) for p in os.listdir('/proc') if p.isdigit()],\n"
            "  'init': open('/proc/1/cmdline').read(), 'kill': attempt(lambda: os.kill(99999, 0))}",
        )
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)

    assert seen["files"] == []
    assert seen["abstract"] == "ECONNREFUSED"
    assert (seen["shm"], seen["queue"]) == (-1, -1)
    assert len(seen["pids"]) < 8


async def test_e16_no_priority_over_others_can_be_taken(workshop: Workshop) -> None:
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "def lower():\n"
            "    os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-500')\n"
            "param = (ctypes.c_int * 1)(50)\n"
            "result = [attempt(lower), attempt(lambda: os.nice(-20)), call('sched_setscheduler', 0, 1, param)]",
        )

    if workshop.kind == "runsc":  # gVisor keeps such wishes to itself
        pytest.skip("gVisor answers for its own scheduler, not the host's.")
    assert set(seen) <= REFUSED


async def test_e20_arguments_named_like_engine_options_reach_no_engine(workshop: Workshop) -> None:
    engine_options = {"image": "evil", "privileged": True, "mounts": ["/:/host"], "user": "root"}
    async with workshop.toolbox() as toolbox:
        before = await workshop.made[-1].examine()
        result = await toolbox.run("execute_command", {"command": "touch ran", **engine_options}, 10)
        after = await workshop.made[-1].examine()
        ran = await shell(toolbox, "ls")

    assert result.is_error, "an argument the schema does not name is refused"
    assert "ran" not in ran.text.split()
    assert [item[:2] for item in after] == [item[:2] for item in before]


async def test_the_environment_inside_holds_nothing_of_ours(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-6f1d")
    async with workshop.toolbox() as toolbox:
        seen = await shell(
            toolbox,
            "cat /proc/1/environ /proc/self/environ /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; env",
        )

    assert "canary" not in seen.text
    assert "ANTHROPIC" not in seen.text


async def test_f11_and_f12_a_command_cannot_read_the_server_or_answer_in_its_name(workshop: Workshop) -> None:
    forgery = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    async with workshop.toolbox() as toolbox:
        seen = await attack(
            toolbox,
            "server = [p for p in os.listdir('/proc') if p.isdigit() and\n"
            "  b'workspace_server' in open(f'/proc/{p}/cmdline', 'rb').read()]\n"
            f"forgery = {forgery!r}\n"
            "def forge(p, n):\n"
            "    with open(f'/proc/{p}/fd/{n}', 'w') as f: f.write(forgery + chr(10))\n"
            "result = {'found': len(server), 'forged': [attempt(lambda: forge(p, n)) for p in server for n in (1, 2)],\n"
            # PID 1 only waits and holds nothing; the server itself must be closed.
            "  'memory': [attempt(lambda: open(f'/proc/{p}/mem', 'rb').close()) for p in server\n"
            "    if b'python3' in open(f'/proc/{p}/cmdline', 'rb').read().split(b'\\0')[0]]}",
        )

    if workshop.kind == "runsc":
        pytest.skip("gVisor: processes of one user are open to each other; only this sandbox can be fooled.")
    assert seen["found"] >= 1
    assert set(seen["forged"]) <= REFUSED
    assert seen["memory"]
    assert set(seen["memory"]) <= REFUSED
