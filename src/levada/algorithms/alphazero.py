r"""AlphaZero: self-play with a tree search, whose moves and outcomes a network learns (Silver et al. 2017, arXiv 1712.01815).

    play x shards -> targets ==> [replay] -> sample -> learn
        ^                                               |
        +------------------ [weights] <-----------------+

The network maps a position to a policy and a value. The source plays games against itself: before each move, a tree search that
the network guides visits positions ahead. The network learns to predict the search's visits and the result of the game. For games
of OpenSpiel that two players play in turns, without chance and hidden information.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor

from levada.algorithms.all_agents import OfAllAgents
from levada.algorithms.checks import ConfigError, require_values
from levada.algorithms.replayed import ReplayAlgorithm, ReplayPart
from levada.flow import Flow
from levada.math import Categorical
from levada.rl.acting.game_sampler import FIRST_OUTCOME, OUTCOME, SEARCH_POLICY, SHARE, GameSampler, Targets
from levada.rl.acting.tree_search import TreeSearch
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.board_game import BoardGame
from levada.rl.envs.agents.task import MultiAgentTask, PolicyTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.loss import LossOutput, Networks
from levada.rl.policies.networks import default_network
from levada.validation import NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat


@dataclass(frozen=True, kw_only=True)
class AlphaZero(ReplayAlgorithm, OfAllAgents):
    """Configuration of AlphaZero. `buffer_size`, `learning_starts`, `batch_size` and `samples_per_insert` count positions.

    Raises:
        ConfigError: a field has an invalid value, or no effect.
    """

    SOURCE: ClassVar[str] = "play"
    num_envs: PositiveInt = 64
    """Number of games per shard, played at once. With more games, a move costs less, and more games are played with the same
    weights."""
    num_steps: PositiveInt = 8
    """Number of moves per game before a sampler fetches newer weights. The positions of a game are stored when it ends."""
    num_simulations: PositiveInt = 50
    """Number of simulations of the search before each move. With more of them, moves and targets are better, and games take
    longer. The paper has 800."""
    puct_coef: PositiveFloat = 1.25
    """Exploration constant of the search (PUCT). With larger values, simulations follow the network's policy for longer before
    they prefer actions with higher values."""
    noise_fraction: UnitFloat = 0.25
    """Weight of the noise in the policy at the root of a search. 0: no noise."""
    noise_alpha: PositiveFloat = 1.0
    """Parameter of the Dirichlet distribution of this noise. Smaller values concentrate it on fewer actions. The paper's values,
    0.3 for chess and 0.03 for Go, are about 10 / (number of legal actions)."""
    num_sampled_moves: NonNegativeInt = 10
    """Number of moves at the start of a game that are sampled in proportion to the search's visits; later moves are those with
    most visits. With more of them, games differ more."""
    value_coef: PositiveFloat = 1.0
    """Weight of the value loss relative to the policy loss."""
    discount: UnitFloat = 1.0
    """Discount factor; always 1, for the value is the result of the game."""
    buffer_size: PositiveInt = 50_000
    learning_starts: PositiveInt = 2_000
    samples_per_insert: PositiveFloat = 8.0
    batch_size: PositiveInt = 256
    hidden_sizes: tuple[PositiveInt, ...] = (128, 128)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_values(
            self, "positions of games", n_step=1, discount=1.0, tau=0.005, target_update_interval=1,
            prioritized=False, normalize_reward=False,
        )  # fmt: skip

    def make_network(self, task: Task) -> Callable[..., Any] | None:
        """Factory of the network of policy and value."""
        return super().make_network(task) or self.with_network_settings(default_network)

    def flow(self, task: Task | MultiAgentTask) -> Flow:
        """Build the flow for a game, which one policy plays against itself.

        Raises:
            TaskError: it is no such game, or has several policies.
        """
        if not isinstance(task, MultiAgentTask):
            task = AgentsTask.of(task).shared()
        if len(task.policies) != 1:
            msg = f"AlphaZero got the policies {', '.join(task.policies)}; expected one, which plays for both players"
            raise TaskError(msg)
        [name] = task.policies
        return super().flow(task[name])

    def part(self, task: Task, name: str = "policy") -> ReplayPart:
        """Make the learner, the source of games, and the stage from games to rows of the replay.

        Raises:
            TaskError: the task is no game that can be searched.
            ConfigError: an item may be more than a table of the replay holds.
        """
        if not isinstance(task, PolicyTask):
            msg = f"AlphaZero plays for all players of a game; expected a MultiAgentTask, got {task!r}"
            raise TaskError(msg)
        game = BoardGame.of(task.multi)
        self._check_room(game)
        policy = self.policy(task, name=task.policy)
        source = GameSampler(
            task=task.multi, policy=policy, num_games=self.num_envs, num_moves=self.num_steps,
            num_sampled_moves=self.num_sampled_moves, noise_alpha=self.noise_alpha,
            search=TreeSearch(
                num_simulations=self.num_simulations, puct_coef=self.puct_coef, noise_fraction=self.noise_fraction
            ),
        )  # fmt: skip
        return ReplayPart(self.learner(policy, AlphaZeroLoss(self)), source, Targets())

    def _check_room(self, game: BoardGame) -> None:
        """Refuse a replay whose tables may be smaller than an item, in which all games may end."""
        most = self.num_envs * (self.num_steps + game.max_length)
        if most > (capacity := -(-self.buffer_size // self.tables)):
            msg = (
                f"AlphaZero(buffer_size={self.buffer_size}, tables={self.tables}): an item of num_envs={self.num_envs} games may "
                f"be {most} positions, and a table holds {capacity}; raise buffer_size"
            )
            raise ConfigError(msg)


@dataclass(frozen=True)
class AlphaZeroLoss:
    """AlphaZero's loss (arXiv 1712.01815, equation 1): (z - v)^2 - pi^T log p.

    z is the result of the game for the player whose turn it is, and pi the fraction of the search's visits of each action. The
    regularization of the weights is a setting of the optimizer.
    """

    hp: AlphaZero

    def __call__(self, networks: Networks, batch: Mapping[str, Any], coefficients: Mapping[str, Tensor]) -> LossOutput:
        """Loss of positions ``[N, ...]``, and its statistics."""
        policy, value, *_ = networks.policy(batch["obs"])
        log_probs = cast("Categorical", policy).log_probs
        policy_loss = -(batch[SEARCH_POLICY] * log_probs).sum(dim=-1).mean()
        value_loss = (batch[OUTCOME] - value).square().mean()
        loss = policy_loss + self.hp.value_coef * value_loss
        return LossOutput(loss, {"policy_loss": policy_loss, "value_loss": value_loss})

    def batch_stats(self, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Fractions of the games behind a batch that the first player won, that were drawn, and that the second player won. Each
        game counts the same: its positions are weighted by its length.
        """
        outcome, share = batch[FIRST_OUTCOME], batch[SHARE]
        results = {"first_wins": outcome > 0, "draws": outcome == 0, "second_wins": outcome < 0}
        return {name: (share * found).sum() / share.sum() for name, found in results.items()}
