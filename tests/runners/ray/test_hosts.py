"""The same flow on separate hosts: network namespaces with addresses of their own, so that all data crosses a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.ray.hosts import Hosts, are_permitted

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not are_permitted(), reason="network namespaces are not permitted")

PROGRAM = """
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
from levada.runners import Inline
from levada.runners.ray import Ray
from levada.run.storage.hashing import params_sha256
from support.processes import samples
from support.ray.hosts import Hosts

def learned(on, kill=None):
    with on.open(samples.small_ppo(1), seed=1) as run:
        for report in run:
            if report.firing == 4 and kill is not None:
                Hosts.kill(None, kill)
            if report.firing == 10:
                [channel] = run.statistics().channels.values()
                assert channel.ledger.balanced, channel
                return params_sha256(run.node_state("learn").weights())

if __name__ == "__main__":
    address, ip, *nodes = sys.argv[1:]
    expected = learned(Inline())
    ray.init(address=address, _node_ip_address=ip, log_to_driver=False, logging_level="ERROR")
    assert {node["NodeManagerAddress"] for node in ray.nodes()} > {ip}
    assert learned(Ray(workers=2)) == expected
    assert learned(Ray(workers=2), kill=nodes[-1]) == expected
    print("equal")
"""


def test_two_hosts_give_the_bits_of_one_process_also_when_one_is_lost(tmp_path: Path) -> None:
    """The driver imports Ray, and with it torch, before levada: its instruction set must reach the hosts."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with Hosts(tmp_path).open(num_nodes=2) as hosts:
        command = [sys.executable, str(program), hosts.address, "10.77.0.1", *hosts.names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150.0, check=False, env=_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("equal")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
