"""Inference in the sampler, beside the learner, or in a process for all: the same flow, the same bits."""

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.processes import samples

from levada.flow import DeploymentError, LevadaInternalError
from levada.rl.acting.actor import Actor
from levada.rl.policies.policy import Policy
from levada.rl.policies.recurrent import RecurrentNet
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.processes.inference.client import InferenceClient
from levada.runners.processes.inference.handle import InferencePlace
from levada.runners.processes.inference.messages import Connect, Rings, ToControl
from levada.runners.processes.inference.server import InferenceServer
from levada.runners.processes.ipc.weights_ring import Ring, RingReader
from levada.runners.processes.ipc.wire import Wire

ELSEWHERE = ["learner", "worker"]


def learned(flow, on, num_updates=6):
    with on.open(flow, seed=1) as run:
        for report in run:
            if report.firing == num_updates:
                return params_sha256(run.node_state("learn").weights())
    raise AssertionError


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("inference", ELSEWHERE)
def test_as_inline_bit_for_bit(lag, inference):
    flow = samples.small_ppo(lag)
    assert learned(flow, Processes(workers=2, inference=inference)) == learned(flow, Inline())


@pytest.mark.parametrize("inference", ELSEWHERE)
def test_networks_that_torch_computes(inference):
    flow = samples.small_ppo(1, network="support.processes.networks:SharedTrunk")
    assert learned(flow, Processes(workers=2, inference=inference), 4) == learned(flow, Inline(), 4)


@pytest.mark.parametrize("inference", ELSEWHERE)
def test_in_arrival_order_calls_are_computed_together(inference):
    with Processes(workers=4, inference=inference).open(samples.arrival_ppo(), seed=1) as run:
        for report in run:
            if report.firing == 10:
                break
        [channel] = run.statistics().channels.values()
        assert channel.ledger.balanced
        assert channel.lag["policy"].max <= 2


@pytest.mark.parametrize("inference", ELSEWHERE)
def test_killed_workers_change_no_bit(inference):
    flow = samples.small_ppo(1)
    with Processes(workers=2, inference=inference, max_restarts=20).open(flow, seed=1) as run:
        for report in run:
            if report.firing == 6:
                break
            kill(run.worker_pids[0])
        assert params_sha256(run.node_state("learn").weights()) == learned(flow, Inline())


def test_a_killed_inference_is_started_again_and_changes_no_bit():
    flow = samples.small_ppo(1)
    with Processes(workers=2, inference="worker", max_restarts=20).open(flow, seed=1) as run:
        pids = {run.transport.inference_pid}
        for report in run:
            if report.firing == 6:
                break
            if report.firing in (2, 4):
                kill(run.transport.inference_pid)
            pids.add(run.transport.inference_pid)
        assert params_sha256(run.node_state("learn").weights()) == learned(flow, Inline())
    assert len(pids) >= 2


def test_nothing_is_left_behind():
    for inference in ELSEWHERE:
        learned(samples.small_ppo(0), Processes(workers=2, inference=inference), 2)
    descriptors, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    for inference in ELSEWHERE:
        learned(samples.small_ppo(0), Processes(workers=2, inference=inference), 2)
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # those of other tests may be closed meanwhile
    assert not set(threading.enumerate()) - threads


def test_other_places_are_refused():
    with pytest.raises(DeploymentError, match=r"inference='gpu'.*expected 'sampler', 'learner' or 'worker'"):
        Processes(inference="gpu")


# ---- the server alone


class Scale:
    """Multiplies by its weight; keeps how many rows each call had."""

    sizes: ClassVar[list[int]] = []

    def __init__(self):
        self.weight = None

    def load(self, weights):
        self.weight = weights["scale"].copy()

    def both(self, x):
        Scale.sizes.append(len(x["a"]))
        return {"a": x["a"] * self.weight, "b": (x["b"][0] * self.weight,)}, None

    def fail(self, x):
        raise samples.StormError("storm")


@pytest.fixture
def served():
    """A server in a thread, two clients, and the ring."""
    Scale.sizes.clear()
    ring = Ring(2, {"scale": np.float32([1.0])})
    place = InferencePlace("learner", {"w": ring}, num_threads=1, is_batched=True)
    clients = [InferenceClient(place.connect()) for _ in range(2)]
    reader = RingReader(ring.place, ring.share())
    yield clients, ring, reader
    for client in clients:
        client._wire.close()
    place.close()


def give(client, reader, version=None):
    client.known["w"] = reader.read(version)
    return client.known["w"][1]


def batch(start, size):
    a = np.arange(start, start + size, dtype=np.float32)
    return {"a": a, "b": (a + 0.5,)}


def test_a_call_and_its_answer(served):
    (client, _), ring, reader = served
    model = client.serve(Scale)
    model.load(give(client, reader, 0))
    found, nothing = model.both(batch(3, 4))
    assert nothing is None
    assert found["a"].tolist() == [3.0, 4.0, 5.0, 6.0]
    ring.write(1, {"scale": np.float32([2.0])})
    model.load(give(client, reader, 1))
    assert model.both(batch(3, 2))[0]["b"][0].tolist() == [7.0, 9.0]


def test_an_error_comes_back_with_its_traceback(served):
    (client, _), _, reader = served
    model = client.serve(Scale)
    model.load(give(client, reader, 0))
    with pytest.raises(samples.StormError, match="storm") as caught:
        model.fail(batch(0, 1))
    assert caught.traceback[-1].name == "fail"
    assert model.both(batch(0, 1))[0]["a"].tolist() == [0.0]  # and it goes on


def test_weights_that_are_gone_come_along(served):
    (client, _), ring, reader = served
    model = client.serve(Scale)
    weights = give(client, reader)
    for version in range(1, 6):
        ring.write(version, {"scale": np.float32([10.0 * version])})
    model.load(weights)
    assert model.both(batch(3, 1))[0]["a"].tolist() == [3.0]


def test_other_weights_are_refused(served):
    (client, _), _, reader = served
    give(client, reader)
    with pytest.raises(LevadaInternalError, match="other weights than those"):
        client.serve(Scale).load({"scale": np.float32([1.0])})


def test_calls_that_wait_are_computed_together():
    Scale.sizes.clear()
    ring = Ring(2, {"scale": np.float32([3.0])})
    here, there = socket.socketpair()
    server = InferenceServer(there, is_batched=True)
    control = Wire(here, ToControl)
    control.send(Rings({"w": ring.place}), [ring.share()])
    clients, reader, answers = [], RingReader(ring.place, ring.share()), {}
    for _ in range(3):
        mine, its = socket.socketpair()
        control.send(Connect(), [its.detach()])
        clients.append(InferenceClient(mine))
        give(clients[-1], reader, 0)
    asked = threading.Semaphore(0)

    def ask(number):
        model, wire = clients[number].serve(Scale), clients[number]._wire
        model.load(clients[number].known["w"][1])
        receive = wire.receive
        wire.receive = lambda: (asked.release(), receive())[1]  # its call has been sent
        answers[number] = model.both(batch(10 * number, number + 1))[0]["a"].tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    while len(server._selector.get_map()) < 4:
        assert server._obey()
    for _ in threads:
        assert asked.acquire(timeout=20.0)
    running = threading.Thread(target=server.run)
    running.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client._wire.close()
    control.close()
    running.join()
    assert answers == {0: [0.0], 1: [30.0, 33.0], 2: [60.0, 63.0, 66.0]}
    assert sum(Scale.sizes) == 6
    assert len(Scale.sizes) < 3


def test_states_of_recurrent_policies_come_in_and_go_out():
    """Two samplers are answered together; what each remembers is what its episode played alone gives."""
    vector = spaces.Box(-1.0, 1.0, (3,))
    policy = Policy(observation_space=vector, action_space=spaces.Discrete(2), network=RecurrentNet)
    module = policy.module(seed=1)
    ring = Ring(2, policy.weights(module))
    place = InferencePlace("learner", {"w": ring}, num_threads=1, is_batched=True)
    clients = [InferenceClient(place.connect()) for _ in range(2)]
    reader = RingReader(ring.place, ring.share())
    states, seen = {}, np.random.default_rng(0).normal(size=(2, 12, 4, 3)).astype(np.float32)

    def play(number):
        actor = Actor(policy, clients[number].serve)
        actor.load(give(clients[number], reader, 0))
        states[number] = actor.initial_state(4)
        for obs in seen[number]:
            states[number] = actor.step(obs, states[number])[2].copy()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        _, _, expected = module(torch.from_numpy(seen[number]), torch.zeros(4, policy.state_size))
        np.testing.assert_allclose(states[number], expected.detach(), rtol=1e-5, atol=1e-5)
    for client in clients:
        client._wire.close()
    place.close()
