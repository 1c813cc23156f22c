"""rejax's PPO (end to end in JAX), timed as a peer of levada.

    python rejax_ppo.py --env CartPole-v1 --preset cleanrl --steps 500000 --seed 0 --threads 1

Its own `train` says nothing until the end. Here the same iterations are compiled in chunks, with a line of progress after each.
JAX has no option for the number of its threads: it has as many as the process has cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from _progress import Progress

_PRESETS = {
    "cleanrl": {"num_envs": 4, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4},
    "tuned": {"num_envs": 8, "num_steps": 32, "num_epochs": 20, "num_minibatches": 1},
    "wide": {"num_envs": 64, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4},
    "batch": {"num_envs": 64, "num_steps": 32, "num_epochs": 4, "num_minibatches": 4},
}
_CHUNK_STEPS = 8_192


def create_craftax(name: str) -> tuple[Any, Any]:
    """Make a Craftax environment and its parameters. rejax expects gymnax's space of discrete actions, Craftax has its own."""
    from gymnax.environments.spaces import Discrete
    from rejax.compat import craftax2gymnax

    env, params = craftax2gymnax.create_craftax(name)
    num_actions = env.action_space(params).n
    env.action_space = lambda *_: Discrete(num_actions)
    return env, params


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description="rejax PPO")
    parser.add_argument("--env", required=True)
    parser.add_argument("--preset", choices=list(_PRESETS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--stop-return", type=float, help="stop at this mean return of 128 episodes, measured after each chunk"
    )
    args = parser.parse_args()

    if sys.platform == "linux":  # before JAX counts the cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    import jax
    from rejax import compat, get_algo

    compat._create_fns["craftax"] = __name__, "create_craftax"
    progress = Progress(stop_return=args.stop_return)
    settings = _PRESETS[args.preset]
    ppo = get_algo("ppo").create(
        env=args.env, agent_kwargs={"activation": "tanh"}, learning_rate=2.5e-4, max_grad_norm=0.5, **settings
    )  # fmt: skip
    per_iteration = settings["num_envs"] * settings["num_steps"]
    num_iterations = max(1, _CHUNK_STEPS // per_iteration)

    @jax.jit
    def chunk(state: object) -> object:
        return jax.lax.fori_loop(0, num_iterations, lambda _, state: ppo.train_iteration(state), state)

    @jax.jit
    def evaluate(state: object, key: object) -> object:
        return ppo.eval_callback(ppo, state, key)

    state, steps = ppo.init_state(jax.random.key(args.seed)), 0
    while steps < args.steps and not progress.solved:
        state = jax.block_until_ready(chunk(state))
        steps += num_iterations * per_iteration
        if args.stop_return is not None:
            _, returns = evaluate(state, jax.random.key(steps))
            for value in returns[:100].tolist():
                progress.episode(value, steps)
        progress.update(steps)
    progress.end(steps)


if __name__ == "__main__":
    main()
