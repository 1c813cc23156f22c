"""The same flow on separate hosts: network namespaces with addresses of their own, so that all data crosses a network.

Where namespaces are not permitted, nodes on this host take their place; the names of the tests say which were used.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
from support.ray.hosts import Hosts, are_permitted
from support.ray.local_nodes import LocalNodes

pytest.importorskip("ray")
KIND = Hosts if are_permitted() else LocalNodes

BEGIN = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
from levada.runners import Inline
from levada.runners.ray import Ray
from levada.run.storage.hashing import params_sha256
from support.processes import samples

def tell(what):
    print("@", what, flush=True)
    sys.stdin.readline()

address, ip = sys.argv[1:]
ray.init(address=address, _node_ip_address=ip, log_to_driver=False, logging_level="ERROR")
assert len(ray.nodes()) == 3
assert ip == "127.0.0.1" or len({node["NodeManagerAddress"] for node in ray.nodes()}) == 3
"""

FAULTS = (
    BEGIN
    + """
def learned(on, faults):
    with on.open(samples.small_ppo(1), seed=1) as run:
        for report in run:
            if report.firing in faults:
                tell(faults[report.firing])
            if report.firing == 16:
                [channel] = run.statistics().channels.values()
                assert channel.ledger.balanced, channel
                return params_sha256(run.node_state("learn").weights())

expected = learned(Inline(), {})
assert learned(Ray(workers=2, max_restarts=10), {4: "cut", 8: "kill", 12: "add"}) == expected
tell("equal")
"""
)

FETCHES = (
    BEGIN
    + """
from levada.algorithms.ppo import PPO
from levada.rl.envs.task import Task
from support.envs.small import Long

hp = PPO(shards=4, num_envs=1, num_steps=4, minibatch_size=16, num_epochs=1, hidden_sizes=(1024, 1024), compile=False)
with Ray(workers=3).open(hp.flow(Task("CartPole-v1")), seed=1) as run:
    reports = iter(run)
    next(reports)
    tell("begin")
    for report in reports:
        if report.firing == 11:
            break
    num_bytes = sum(array.nbytes for array in run.node_state("learn").weights().values())
    assert run.transport.num_bytes_received == 0
    tell(f"end {num_bytes}")

sizes = dict(shards=2, num_envs=8, num_steps=32, minibatch_size=512, microbatch_size=256, num_epochs=1)
hp = PPO(hidden_sizes=(8,), compile=False, **sizes)
with Ray(workers=2, learners="beside").open(hp.flow(Task(Long)), seed=1) as run:
    reports = iter(run)
    next(reports)
    tell("begin")
    for report in reports:
        if report.firing == 6:
            break
    tell(f"end {8 * 32 * 4 * 1000}")  # the observations of a rollout alone
"""
)


CLIENT = """
import os, signal, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
from levada.runners import Inline
from levada.runners.ray import Ray
from support.processes import samples

def learned(on, kill_after=None):
    with on.open(samples.counting_flow(samples.Numbers()), seed=1) as run:
        for report in run:
            if report.firing == kill_after:
                os.kill(run.worker_pids[0], signal.SIGKILL)
            if report.firing == 10:
                [channel] = run.statistics().channels.values()
                assert channel.ledger.balanced and bool(channel.ledger.lost) == (kill_after is not None), channel
                return [(row[0], row[2]) for batch in run.node_state("learn").batches for row in batch]  # shard, version

assert learned(Ray(address=f"ray://{sys.argv[2]}:10001", workers=1), kill_after=3) == learned(Inline())
"""


def execute(program: str, hosts: Hosts | LocalNodes, folder: Path, obey) -> None:
    """Run a program on the head, which waits for an answer after each line that it tells; `obey` gets their words."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, str(file), hosts.address, hosts.ip]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as running:
        stop = Timer(900.0, running.kill)
        stop.start()
        try:
            for line in running.stdout:
                mark, *words = line.split() or [""]
                if mark != "@":  # said by Ray
                    continue
                obey(words)
                running.stdin.write("\n")
                running.stdin.flush()
            assert running.wait() == 0, running.stderr.read()
        finally:
            stop.cancel()
            running.kill()


@pytest.fixture(scope="module", params=[KIND])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts | LocalNodes]:
    """Two hosts beside the head. The last test takes one away."""
    with request.param(tmp_path_factory.mktemp("hosts")).open(num_nodes=2) as hosts:
        yield hosts


needs_network = pytest.mark.skipif(
    KIND is LocalNodes, reason="network namespaces are not permitted, and without them there is no network"
)


@needs_network
def test_what_the_network_brings_to_a_host(hosts: Hosts, tmp_path: Path) -> None:
    """In ten updates, the weights of ten versions, also where there are two workers. With learners beside the samplers, no
    rollouts.
    """
    counted = []

    def obey(words: list[str]) -> None:
        counted.append([hosts.num_bytes_into(name) for name in hosts.names])
        if words[0] == "end":
            counted.append(int(words[1]))

    execute(FETCHES, hosts, tmp_path, obey)
    before, after, num_bytes, before_beside, after_beside, rollout_nbytes = counted
    assert num_bytes > 4_000_000
    for first, last in zip(before, after, strict=True):
        assert 9 <= (last - first) / num_bytes <= 12.0
    for first, last in zip(before_beside, after_beside, strict=True):
        assert (last - first) / 5 < 0.3 * rollout_nbytes


@needs_network
def test_a_program_outside_the_cluster(hosts: Hosts | LocalNodes, tmp_path: Path) -> None:
    """By the client of Ray. Its only worker is killed."""
    execute(CLIENT, hosts, tmp_path, list)


def test_hosts_that_are_cut_off_lost_and_added_change_no_bit(hosts: Hosts | LocalNodes, tmp_path: Path) -> None:
    """The driver imports Ray, and with it torch, before levada: its instruction set must reach the hosts."""
    said = []
    first, second = hosts.names

    def obey(words: list[str]) -> None:
        said.append(words[0])
        if words[0] == "cut":
            hosts.connect(first, False)
            Timer(4.0, hosts.connect, (first, True)).start()
        elif words[0] == "kill":
            hosts.kill(second)
        elif words[0] == "add":
            hosts.add()

    execute(FAULTS, hosts, tmp_path, obey)
    assert said == ["cut", "kill", "add", "equal"]
