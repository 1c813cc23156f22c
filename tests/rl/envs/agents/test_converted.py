"""PettingZoo's conversion of turns into steps of all agents, made by levada: the same as PettingZoo's, in less time."""

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_speaker_listener_v4, simple_spread_v3
from pettingzoo.utils.conversions import aec_to_parallel
from support.envs.multi import Relay

from levada.rl.envs.agents.adapters import Simultaneous
from levada.rl.envs.agents.converted import Converted, adapted
from levada.rl.envs.observations import Violation


@pytest.mark.parametrize("module", [simple_spread_v3, simple_speaker_listener_v4])
@pytest.mark.parametrize("continuous_actions", [False, True])
def test_steps_are_those_of_pettingzoo(module, continuous_actions):
    made = [module.parallel_env(max_cycles=5, continuous_actions=continuous_actions) for _ in range(2)]
    own, other = adapted(made[0]), Simultaneous(made[1])
    assert type(own) is Converted
    rng, num_steps = np.random.default_rng(0), 0
    for seed in (1, None):
        seen, expected = own.reset(seed), other.reset(seed)
        while own.movers:
            assert list(own.movers) == list(other.movers)
            draws = rng.random((len(own.movers), 16), np.float32)
            actions = {
                agent: draw[: own.action_space(agent).shape[0]] if continuous_actions else int(3 * draw[0])
                for agent, draw in zip(own.movers, draws, strict=True)
            }
            seen, expected = own.step(actions), other.step(actions)
            assert list(seen) == list(expected)
            for agent, each in seen.items():
                np.testing.assert_array_equal(each.obs, expected[agent].obs)
                assert each[1:] == expected[agent][1:]
            num_steps += 1
        assert not other.movers
    assert num_steps == 10


def test_an_environment_with_the_parallel_api_stays_as_it_is():
    class Subclass(type(simple_spread_v3.parallel_env())):
        def step(self, actions):
            raise NotImplementedError

    assert type(adapted(Subclass(simple_spread_v3.env()))) is Simultaneous


def test_turns_out_of_order_are_told():
    turns: Any = Relay()
    turns.render_mode = None
    turns.metadata = {**turns.metadata, "is_parallelizable": True}
    env = adapted(aec_to_parallel(turns))
    env.reset(1)
    turns.agents = turns.agents[::-1]
    with pytest.raises(Violation, match=r"it is the turn of agent 'agent_0', expected 'agent_2'"):
        env.step(dict.fromkeys(turns.agents, 0))
