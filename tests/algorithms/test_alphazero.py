"""AlphaZero: its loss, what it refuses, learning, and runs that are the same under every deployment and after a resume."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.runs.saved import learned

import levada
from levada.algorithms.alphazero import AlphaZero, AlphaZeroLoss
from levada.algorithms.checks import ConfigError
from levada.algorithms.multi_agent import multi_agent
from levada.cli import main
from levada.math import Categorical
from levada.rl.acting.game_sampler import FIRST_OUTCOME, OUTCOME, SEARCH_POLICY, SHARE, SearchPlayer
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.rl.acting.tree_search import TreeSearch
from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.loss import Networks
from levada.runners import Inline
from levada.runners.processes import Processes

TIC_TAC_TOE = MultiAgentTask("openspiel:tic_tac_toe")
SMALL = AlphaZero(
    num_envs=4, num_steps=5, num_simulations=6, learning_starts=40, batch_size=16, num_gradient_steps=2, samples_per_insert=2.0,
    hidden_sizes=(8,), compile=False,
)  # fmt: skip


# ---- the loss


def test_the_loss_is_that_of_the_paper() -> None:
    probabilities, values = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0.5, 0.0])
    networks = Networks({"policy": lambda _: (Categorical(probabilities.log()), values)})
    batch = {"obs": None, SEARCH_POLICY: torch.tensor([[1.0, 0.0], [0.25, 0.75]]), OUTCOME: torch.tensor([1.0, -1.0])}
    found = AlphaZeroLoss(replace(SMALL, value_coef=2.0))(networks, batch, {})
    policy_loss = -(np.log(0.5) + 0.25 * np.log(0.2) + 0.75 * np.log(0.8)) / 2
    assert found.stats["policy_loss"].item() == pytest.approx(policy_loss)
    assert found.stats["value_loss"].item() == pytest.approx((0.25 + 1.0) / 2)
    assert found.loss.item() == pytest.approx(policy_loss + 2.0 * 0.625)


def test_each_game_counts_the_same_in_the_rates() -> None:
    """A game of two moves that the first player won, a draw of three, and one of a move that the second player won."""
    outcome = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, -0.5])
    share = 1.0 / torch.tensor([2.0, 2.0, 3.0, 3.0, 3.0, 1.0])
    found = AlphaZeroLoss(SMALL).batch_stats({FIRST_OUTCOME: outcome, SHARE: share})
    assert {name: pytest.approx(1 / 3) for name in ("first_wins", "draws", "second_wins")} == {
        name: value.item() for name, value in found.items()
    }


# ---- what is refused


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_step", 3), ("discount", 0.9), ("tau", 0.5), ("target_update_interval", 2), ("prioritized", True),
     ("normalize_reward", True)],
)  # fmt: skip
def test_fields_without_effect_are_refused(field, value) -> None:
    with pytest.raises(ConfigError, match=rf"AlphaZero\({field}={value}\): .*; positions of games have no {field}"):
        AlphaZero(**{field: value})


def test_a_replay_smaller_than_an_item_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="num_envs=4 games may be 56 positions, and a table holds 50; raise buffer_size"
    ):
        replace(SMALL, buffer_size=50).flow(TIC_TAC_TOE)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Task("openspiel:kuhn_poker"), "got chance events, hidden information; a search expects"),
        (Task("CartPole-v1"), "task 'CartPole-v1'"),
        (
            MultiAgentTask("openspiel:tic_tac_toe", {"a": ("player_0",), "b": ("player_1",)}),
            "AlphaZero got the policies a, b; expected one, which plays for both players",
        ),
    ],
)
def test_other_tasks_are_refused(task, why) -> None:
    with pytest.raises(TaskError, match=why):
        AlphaZero().flow(task)
    with pytest.raises(TaskError, match=r"expected a MultiAgentTask, got Task\("):
        AlphaZero().part(Task("CartPole-v1"))


def test_it_does_not_share_an_environment() -> None:
    with pytest.raises(ConfigError, match="policy 'policy': AlphaZero has a source of its own"):
        multi_agent(TIC_TAC_TOE, {"policy": AlphaZero()})


# ---- runs


def test_it_learns_to_win_and_to_prevent_a_loss() -> None:
    """By the network alone: what the searches of its games found."""
    hp = AlphaZero(num_envs=32, num_simulations=30, learning_starts=512, num_gradient_steps=16, samples_per_insert=16.0)
    flow = hp.flow(TIC_TAC_TOE)
    reported = []
    with Inline().open(flow, seed=1) as run:
        for report in run:
            reported.append(report.values)
            if report.firing == 24:
                break
        weights = run.node_state("learn").weights()
    assert np.mean([each["losses/value_loss"] for each in reported[-3:]]) < 0.75 * reported[0]["losses/value_loss"]
    assert reported[-1]["losses/policy_loss"] < reported[0]["losses/policy_loss"] - 0.1
    game, policy = BoardGame.of(TIC_TAC_TOE), TrainedPolicy(flow.learners()["learn"].policy, weights, version=24)
    positions = []
    for moves in ((0, 3, 1, 4), (4, 0, 3)):  # 2 wins, and 5 prevents a loss
        position = game.start()
        for move in moves:
            position = game.after(position, move)
        positions.append(position)
    assert policy.act_batch(game.observe(positions).nest).tolist() == [2, 5]


def test_it_is_the_same_under_every_deployment_and_after_a_resume() -> None:
    flow = replace(SMALL, shards=2).flow(TIC_TAC_TOE)
    expected = learned(flow, Inline(), "learn", 9)
    assert learned(flow, Processes(workers=2), "learn", 9) == expected
    state = learned(flow, Inline(), "learn", 9, save_at=5)
    assert learned(flow, Inline(), "learn", 9, state=state) == expected


def test_the_command_line_trains_and_evaluates(tmp_path, capsys) -> None:
    path = tmp_path / "run"
    small = "--num-envs 4 --num-steps 8 --num-simulations 4 --learning-starts 64 --batch-size 16 --hidden-sizes 8 --compile False"
    words = f"train alphazero --env openspiel:tic_tac_toe {small} --until steps=500 --seed 1 --quiet --out {path}"
    assert main(words.split()) == 0
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    last = {name: value for line in lines for name, value in line.items()}
    rates = [last[f"losses/{name}"] for name in ("first_wins", "draws", "second_wins")]
    assert sum(rates) == pytest.approx(1.0, abs=1e-5)
    assert {"losses/policy_loss", "losses/value_loss", "charts/episodic_return"} <= last.keys()
    capsys.readouterr()
    assert main(["eval", str(path), "--episodes", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"]["policy"]["episodes"] == 12
    result = levada.load(path)
    player = SearchPlayer(TIC_TAC_TOE, result.policies["policy"], TreeSearch(num_simulations=20))
    assert player.act([player.game.start()]).shape == (1,)
