"""Evaluation: play with a trained policy, at the end of a run and at its checkpoints, and act in a loop of your own.

    python examples/evaluation.py [--updates 240]
    levada eval runs/ppo-CartPole-v1-1-... --checkpoint 160 --episodes 20

Each checkpoint is evaluated in 20 episodes, with the most likely actions; later ones are better. The loop at the end needs only
Gymnasium and `policy.act`: it is what a program does that uses a trained policy.
"""

import argparse

import gymnasium

import levada as lv


def main() -> None:
    """Train, evaluate, load, act."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=240)
    args = parser.parse_args()

    every = max(1, args.updates // 3)
    run = lv.train("ppo", "CartPole-v1", until=f"updates={args.updates}", seed=1, checkpoint_every_updates=every)

    # the last three checkpoints are kept; their names are numbers of updates
    kept = sorted(int(path.name) for path in (run.path / "checkpoints").iterdir())
    for num_updates in kept:
        evaluation = lv.evaluate(run.path, checkpoint=num_updates, num_episodes=20, seed=5)
        print(f"after {evaluation.version} updates: {evaluation.mean:.1f} +- {evaluation.std:.1f}")

    sampled = lv.evaluate(run, num_episodes=20, seed=5, deterministic=False)
    print(f"with actions sampled as in training: {sampled.mean:.1f} +- {sampled.std:.1f}")

    policy = lv.load(run.path).policy  # in another program: the directory is all it needs
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=7)
    episode_return, is_over = 0.0, False
    while not is_over:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        episode_return += float(reward)
        is_over = terminated or truncated
    print(f"an episode in a loop of your own, with version {policy.version}: {episode_return:.0f}")


if __name__ == "__main__":
    main()
