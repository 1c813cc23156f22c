"""Fields of configurations: each has a meaning and a group; names of other libraries are answered."""

import dataclasses

import pytest

import levada
from levada.algorithms.checks import ConfigError
from levada.algorithms.fields import GROUPS, meanings
from levada.algorithms.foreign import ALGORITHMS as FOREIGN_ALGORITHMS
from levada.algorithms.foreign import FOREIGN, RUN, here
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.registry import find_algorithm
from levada.algorithms.user_classes import AlgorithmError
from levada.cli.sweep import SweepOptions
from levada.cli.train import TrainOptions

FIELDS = {name: {field.name for field in dataclasses.fields(find_algorithm(name))} for name in ALGORITHMS}
EVERY_FIELD = set().union(*FIELDS.values())
OPTIONS = {field.name for field in dataclasses.fields(TrainOptions)}
OF_SWEEPS = {field.name for field in dataclasses.fields(SweepOptions)} - OPTIONS

# what people type who come from Stable-Baselines3, CleanRL and RLlib: algorithm, name, what it is here
TYPED = [
    ("ppo", "gamma", "discount"), ("ppo", "lr", "learning_rate"), ("ppo", "n_envs", "num_envs"), ("ppo", "n_steps", "num_steps"),
    ("ppo", "vf_coef", "value_coef"), ("ppo", "ent_coef", "entropy_coef"), ("ppo", "clip", "clip_range"),
    ("ppo", "batch_size", "minibatch_size"), ("ppo", "n_epochs", "num_epochs"), ("ppo", "num_sgd_iter", "num_epochs"),
    ("ppo", "rollout_fragment_length", "num_steps"), ("ppo", "total_timesteps", "until"), ("ppo", "num_workers", "on"),
    ("ppo", "net_arch", "hidden_sizes"), ("ppo", "policy_kwargs", "hidden_sizes"), ("ppo", "train_batch_size", "num_envs"),
    ("ppo", "update_epochs", "num_epochs"), ("ppo", "clip_coef", "clip_range"), ("ppo", "anneal_lr", "anneal_steps"),
    ("dqn", "replay_size", "buffer_size"), ("dqn", "learning_start", "learning_starts"),
    ("dqn", "train_batch_size", "batch_size"), ("dqn", "exploration_fraction", "epsilon_steps"),
    ("dqn", "target_network_frequency", "target_update_interval"), ("dqn", "start_e", "epsilon_start"),
    ("sac", "ent_coef", "log_alpha_init"), ("sac", "gradient_steps", "num_gradient_steps"),
    ("td3", "policy_frequency", "policy_delay"),
    # names of levada 0.1
    ("dqn", "capacity", "buffer_size"), ("dqn", "min_size", "learning_starts"), ("dqn", "lookahead", "n_step"),
    ("dqn", "target_every", "target_update_interval"), ("dqn", "huber", "huber_delta"), ("dqn", "ladder", "epsilon_base"),
    ("dqn", "first_priorities", "initial_priorities"), ("dqn", "prioritised", "prioritized"),
    ("dqn", "alpha", "priority_exponent"), ("dqn", "beta", "importance_sampling_exponent"), ("dqn", "hidden", "hidden_sizes"),
    ("td3", "noise", "exploration_noise"), ("td3", "target_noise", "target_policy_noise"),
    ("td3", "actor_every", "policy_delay"), ("sac", "entropy_share", "target_entropy_ratio"),
    ("sac", "entropy_per_action", "target_entropy"), ("ppo", "clip_value", "clip_range_vf"),
    ("ppo", "anneal_clip", "anneal_clip_range"), ("ppo", "anneal_ent_coef", "anneal_entropy_coef"),
    ("ppo", "normalise_obs", "normalize_obs"),
    ("ppo", "normalise_reward", "normalize_reward"), ("ppo", "normalise_advantage", "normalize_advantage"),
    ("ppo", "cell", "rnn_type"), ("ppo", "num_units", "rnn_size"), ("impala", "replay_capacity", "replay_buffer_size"),
    ("r2d2", "length", "sequence_length"), ("r2d2", "eta", "max_priority_weight"), ("r2d2", "rescale", "value_rescaling"),
]  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_has_a_meaning_and_a_group(name):
    assert set(meanings(find_algorithm(name))) == FIELDS[name]
    assert not FIELDS[name] - {field for group in GROUPS.values() for field in group}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_of_a_field_is_that_of_the_first_base_that_has_one(name):
    """A dataclass with several bases takes them from the last base that has the field, even one that inherits it itself."""
    cls = find_algorithm(name)
    given = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    assert given == {field: getattr(cls, field) for field in given}


def test_groups_and_answers_name_only_what_there_is():
    known = EVERY_FIELD | OPTIONS | OF_SWEEPS
    grouped = [name for group in GROUPS.values() for name in group]
    assert len(set(grouped)) == len(grouped)
    assert set(grouped) <= known
    assert not RUN - OPTIONS - {"display"}  # which is --quiet on the command line
    targets = {
        word.partition("=")[0] for answers in FOREIGN.values() for answer in answers for word in answer.split(" ")
    }
    assert targets <= EVERY_FIELD | RUN | {"quiet"}
    for ours, with_field in FOREIGN_ALGORITHMS.values():
        assert with_field.partition("=")[0] in {"", *FIELDS[ours]}


def test_no_answer_is_hidden_by_a_field_of_every_algorithm():
    assert not set.intersection(*FIELDS.values()) & FOREIGN.keys()


@pytest.mark.parametrize(("algorithm", "typed", "ours"), TYPED)
def test_names_of_other_libraries_are_answered(algorithm, typed, ours):
    assert ours in [target.partition("=")[0] for target in here(typed, FIELDS[algorithm] | RUN)]
    cls = find_algorithm(algorithm)
    said = f"{cls.__name__} has no field {typed!r}: here it is "
    for call in (lambda: cls(**{typed: 1}), lambda: levada.train(algorithm, "CartPole-v1", **{typed: 1})):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value).startswith(said)
        assert ours in str(caught.value).removeprefix(said)


@pytest.mark.parametrize(
    ("algorithm", "typed", "answer"),
    [
        ("ppo", "buffer_size", "dqn, sac, td3 and others have it"),
        ("ppo", "capacity", "here it is 'buffer_size', which dqn, sac, td3 and others have"),
        ("ppo", "tau", "dqn, sac, td3 and others have it"),
        ("dqn", "clip", "here it is 'clip_range', which ppo, appo, ippo and others have"),
        ("sac", "rnn_type", "ppo, a2c, a3c and others have it"),
        ("ppo", "verbose", "here it is display='quiet'"),
    ],
)
def test_fields_of_other_algorithms_are_answered_with_who_has_them(algorithm, typed, answer):
    cls = find_algorithm(algorithm)
    with pytest.raises(ConfigError) as caught:
        cls(**{typed: 1})
    assert str(caught.value) == f"{cls.__name__} has no field {typed!r}: {answer}"


def test_fields_are_given_by_name():
    with pytest.raises(ConfigError, match=r"PPO\(0.9\): fields are given by name"):
        levada.PPO(0.9)
    with pytest.raises(ConfigError, match="PPO has no field 'learning_rat'; did you mean 'learning_rate'\\?"):
        levada.PPO(learning_rat=1)


def test_algorithms_are_found_whatever_the_case():
    assert find_algorithm("PPO") is find_algorithm("ppo") is levada.PPO
    assert find_algorithm("Apex-DQN") is find_algorithm("apex_dqn")
    with pytest.raises(AlgorithmError, match=r"no algorithm 'C51': here it is 'dqn', with distribution='categorical'"):
        find_algorithm("C51")


def test_what_a_constructor_takes_beside_fields_is_no_mistake():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scaled(levada.PPO):
        scale: dataclasses.InitVar[float] = 1.0

        def __post_init__(self, scale):
            super().__post_init__()
            assert scale == 2.0

    assert Scaled(scale=2.0).num_envs == levada.PPO().num_envs
    with pytest.raises(ConfigError, match="Scaled has no field 'gamma'"):
        Scaled(gamma=0.9)
