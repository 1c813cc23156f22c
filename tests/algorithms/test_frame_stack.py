"""Frame stacks in whole runs: the same parameters as with Gymnasium's stacking, under every deployment, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.envs.pixels import Pixels, make_stacked_pixels
from support.runs.saved import as_read

import levada as lv
from levada.algorithms.dqn import DQN
from levada.rl.acting.step_sampler import NStep, StepSampler
from levada.rl.envs.task import Task
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

APART = Processes(workers=2, replays="worker")
SMALL = {
    "num_envs": 2, "num_steps": 4, "learning_starts": 40, "buffer_size": 150, "batch_size": 16, "num_gradient_steps": 2,
    "shards": 2,
    "n_step": 3, "prioritized": True, "network": "support.envs.pixels:Small",
}  # fmt: skip
STACKED = Task(Pixels, frame_stack=3)


def run(task: Task, *, on: Any = None, updates: int = 60, state: Any = None, **fields: Any) -> tuple[str, Any]:
    with (on or Inline()).open(DQN(**SMALL | fields).flow(task), seed=1, state=state) as opened:
        for report in opened:
            if report.firing == updates:
                break
        return params_sha256(opened.node_state("learn").weights()), opened.save(replays=True)


def test_the_parameters_are_those_of_gymnasiums_stacking_under_every_deployment() -> None:
    expected, plain = run(Task(make_stacked_pixels, env_kwargs={"stack": 3}))
    found, state = run(STACKED)
    assert found == expected
    sizes = [sum(array.nbytes for array in table.replays["replay"][0].values()) for table in (plain, state)]
    assert sizes[1] < 0.4 * sizes[0]  # six frames in each row; here frames are small, and episodes short
    for place in (Processes(workers=1), Processes(workers=2), APART, Threads(workers=2), Inline(adversary=1)):
        assert run(STACKED, on=place)[0] == expected, place


@pytest.mark.parametrize("on", [Inline(), APART], ids=str)
def test_a_run_goes_on_from_its_frames_bit_for_bit(on: Any) -> None:
    expected, _ = run(STACKED)
    _, state = run(STACKED, on=on, updates=25)
    assert state.is_exact
    for second in (Inline(), APART):
        assert run(STACKED, on=second, state=as_read(state))[0] == expected


def test_frames_are_made_where_they_cross() -> None:
    """In shared memory: beside them only a few bytes for each row are copied, and the frames of episodes' ends."""
    from levada.flow import Shard
    from levada.runners.processes.ipc.packet import pack as pack_item
    from levada.runners.processes.ipc.packet import unpack as unpack_item
    from levada.runners.processes.ipc.shared_memory import Arena, Segment

    arena = Arena(Segment.create(1 << 22))
    flow = DQN(**SMALL).flow(Task(Pixels, env_kwargs={"longest": 200}, frame_stack=3))
    sampler = next(node.work for node in flow.nodes.values() if isinstance(node.work, StepSampler))
    live = sampler(Shard("step", 0, 1, seed=1, empty=lambda shape, dtype: arena.empty(shape, np.dtype(dtype))))
    weights = sampler.policy.weights(sampler.policy.module(0))
    live(weights)
    made = NStep(discount=0.9, num_steps=3)(live(weights))
    packet = pack_item(made, arena)
    obs: Any = made.columns["obs"]
    num_bytes = sum(part.frames.nbytes for part in obs.pool.parts)
    ends = sum(part.frames.nbytes for part in obs.pool.parts[1:])
    assert num_bytes >= (4 + 2 + 3) * 2 * 100  # new steps, old ones, and the stack before
    assert packet.num_copied - ends < 200 * made.num_rows
    other = unpack_item(packet, memoryview(arena.segment.memory))
    assert other.columns["obs"].pool is other.columns["next_obs"].pool
    np.testing.assert_array_equal(other.columns["next_obs"], np.asarray(made.columns["next_obs"]))
    live.close()


def test_a_run_says_its_stack_and_is_loaded_with_it(tmp_path: Path) -> None:
    task = Task("support.envs.pixels:Pixels-v0", frame_stack=3)
    done = lv.train("dqn", task, until="updates=3", out=tmp_path / "run", display="quiet", save_replays=True, **SMALL)
    again = lv.load(done.path)
    assert again.task == done.task == task.resolved()
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("support.envs.pixels:Pixels-v0"), 3)
    obs, _ = env.reset(seed=1)
    assert again.policy.act(obs) == done.policy.act(obs)
    with pytest.raises(ValueError, match=r"has shape \(10, 10\), expected \(3, 10, 10\)"):
        again.policy.act(obs[0])
    assert len(lv.evaluate(again, num_episodes=4).episodes) == 4
    assert lv.resume(done.path, until="updates=5", display="quiet").summary.updates >= 5


def test_pong() -> None:
    """Frames of Atari, in 84 x 84: what is sampled is what Gymnasium's stacking gives."""
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    small = {
        "num_envs": 1,
        "num_steps": 16,
        "shards": 1,
        "learning_starts": 100,
        "buffer_size": 250,
        "num_gradient_steps": 1,
    }
    small |= {"samples_per_insert": 0.5, "prioritized": False}
    found = [
        run(task, updates=6, **small)
        for task in (Task(make_pong, frame_stack=4), Task(make_pong, env_kwargs={"stack": 4}))
    ]
    assert found[0][0] == found[1][0]
    ours, theirs = (state.replays["replay"][0] for _, state in found)
    num_rows = len(theirs["rows/reward"])
    assert num_rows == 250
    assert theirs["rows/obs"].nbytes + theirs["rows/next_obs"].nbytes == 8 * num_rows * 7056
    assert ours["frames/0"].nbytes < 1.25 * num_rows * 7056


def make_pong(stack: int | None = None) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    # few frames before the first: emulating them takes long
    env: Any = gymnasium.make("ALE/Pong-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=4)
    return env if stack is None else gymnasium.wrappers.FrameStackObservation(env, stack)
