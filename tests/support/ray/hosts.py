"""A Ray cluster of separate hosts: network namespaces of this machine, each with an address of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NETWORK = "10.77.0"
START_S = 300.0


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def are_permitted() -> bool:
    """Whether this process may make network namespaces."""
    if shutil.which("ip") is None:
        return False
    name = f"levada-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        run("ip", "netns", "del", name)
    return made


class Hosts:
    """The head on this host, without processors, and nodes in namespaces with two processors each."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for logs."""
        self._folder = folder
        self._sockets = self._bridge = ""
        self._closing = ExitStack()
        self.ip = f"{NETWORK}.1"
        self.address = f"{self.ip}:6399"
        self.names: list[str] = []

    @contextmanager
    def open(self, num_nodes: int) -> Iterator[Hosts]:
        """Make the network and start Ray on it."""
        bridge = self._bridge = f"lv{os.getpid() % 10_000}"
        with ExitStack() as closing:
            # a folder of its own, with a short name: Ray leaves the address of the cluster there, and makes sockets in it
            self._sockets = closing.enter_context(tempfile.TemporaryDirectory(prefix="lv", ignore_cleanup_errors=True))
            run("ip", "link", "add", bridge, "type", "bridge")
            closing.callback(run, "ip", "link", "del", bridge)
            run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
            head = self._start(
                "head",
                [],
                "--head",
                "--port=6399",
                "--include-dashboard=false",
                "--num-cpus=0",
                f"--node-ip-address={NETWORK}.1",
            )
            closing.callback(_end, head)
            closing.push(self._closing)
            for _ in range(num_nodes):
                self.add()
            yield self

    def add(self) -> None:
        """Start another node."""
        self._closing.enter_context(self._node(self._bridge, len(self.names)))

    def connect(self, name: str, is_up: bool) -> None:
        """Cut a node off from the network, or connect it again."""
        run("ip", "link", "set", f"{self._bridge}v{self.names.index(name)}", "up" if is_up else "down")

    def num_bytes_into(self, name: str) -> int:
        """Return the bytes that the network has brought to a node."""
        counter = f"/sys/class/net/{self._bridge}v{self.names.index(name)}/statistics/tx_bytes"
        return int(Path(counter).read_text())

    def kill(self, name: str) -> None:
        """Kill everything that runs on a node."""
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True).stdout.split()
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended, with its parent
                os.kill(int(pid), 9)

    @contextmanager
    def _node(self, bridge: str, number: int) -> Iterator[None]:
        name, outside, address = f"{bridge}n{number}", f"{bridge}v{number}", f"{NETWORK}.{number + 2}"
        with ExitStack() as closing:
            run("ip", "netns", "add", name)
            closing.callback(run, "ip", "netns", "del", name)
            closing.callback(self.kill, name)
            run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", outside, "master", bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            where = ["ip", "netns", "exec", name]
            node = self._start(name, where, f"--address={self.address}", "--num-cpus=2", f"--node-ip-address={address}")
            closing.callback(node.wait)
            closing.callback(self.kill, name)
            self.names.append(name)
            yield

    def _start(self, name: str, where: list[str], *options: str) -> subprocess.Popen[bytes]:
        """Start Ray on a host, and wait until it is up: nodes that start at once take each other's sockets."""
        ray, log = Path(sys.executable).parent / "ray", self._folder / f"{name}.log"
        command = [
            *where,
            str(ray),
            "start",
            "--block",
            "--disable-usage-stats",
            "--include-log-monitor=false",
            *options,
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": self._sockets,
            "RAY_prestart_worker_first_driver": "0",  # actors of a run start in processes of their own
            "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",  # 30 s are short beside other tests
        }
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        deadline_s = time.monotonic() + START_S
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"ray does not start on {name}:\n{log.read_text()}")
            time.sleep(0.1)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
