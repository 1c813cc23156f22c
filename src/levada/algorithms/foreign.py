"""Names that users of other libraries type first, and their equivalents in levada.

`FOREIGN` maps a name to alternatives; the first alternative that the algorithm has applies. An alternative is one name, or
several that belong together. `name=example` shows how to write an option.

>>> here("gamma", {"discount", "buffer_size"})
('discount',)
>>> here("batch_size", {"minibatch_size"}), here("batch_size", {"buffer_size"})
(('minibatch_size',), ())
>>> in_python(("until=steps=100_000",)), on_the_command_line(("until=steps=100_000",))
("until='steps=100_000'", '--until steps=100_000')
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

RUN = frozenset({
    "until", "seed", "on", "out", "env", "env_kwargs", "threads", "checkpoint_every_updates", "save_replays", "log", "trace",
    "eval_every", "eval_episodes", "eval_env_kwargs", "eval_stochastic", "eval_video",
    "display",
})  # fmt: skip
"""Options of every run that a hint may refer to."""

_NAMES = {
    # length, place and output of a run
    "until=steps=100_000": (
        "total_timesteps n_timesteps timesteps_total num_env_steps_sampled_lifetime total_steps timesteps "
        "max_timesteps max_steps num_timesteps"
    ),
    "until=updates=100": "num_updates num_iterations training_iteration n_updates",
    "until=episodes=500": "n_episodes num_episodes max_episodes",
    "until=return=475": "stop target_reward stop_reward episode_return_mean",
    "on=processes:4 shards": "num_workers n_workers num_env_runners num_rollout_workers num_processes n_jobs num_cpus",
    "device=cuda": "cuda num_gpus use_gpu gpu num_gpus_per_learner",
    "env=CartPole-v1": "env_id env_name environment task gym_id",
    "env_kwargs=max_episode_steps=200": "env_config env_args max_episode_steps",
    "out=DIR": "tensorboard_log log_dir logdir exp_name storage_path run_name save_path",
    "checkpoint_every_updates=100": "save_freq checkpoint_freq checkpoint_frequency save_interval",
    "quiet | display=quiet": "verbose verbosity log_level",
    "seed": "random_state random_seed manual_seed",
    "compile": "torch_compile use_compile jit",
    # sampling
    "num_envs": "n_envs n_env nenvs num_environments num_envs_per_worker num_envs_per_env_runner num_actors",
    "num_steps": "n_steps nsteps rollout_fragment_length unroll_length rollout_length rollout_steps horizon",
    "batch_size | shards num_envs num_steps": "train_batch_size train_batch_size_per_learner",
    "samples_per_insert num_steps": "train_freq train_frequency",
    "normalize_obs normalize_reward": "normalize norm_env vec_normalize",
    "normalize_obs": "norm_obs normalise_obs normalize_observation observation_filter",
    "normalize_reward": "norm_reward normalise_reward",
    # optimization
    "learning_rate": "lr step_size alpha_lr actor_lr critic_lr policy_lr q_lr pi_lr vf_lr optimizer_lr",
    "anneal_steps": "anneal_lr use_linear_lr_decay",
    "anneal_steps learning_rate_schedule": "lr_schedule lr_scheduler",
    "discount": "gamma discount_factor",
    "gae_lambda": "lambda lambda_ lam gae_lam gae_tau",
    "num_epochs": "n_epochs num_sgd_iter update_epochs noptepochs ppo_epoch epochs",
    "minibatch_size | batch_size": "batch_size sgd_minibatch_size mini_batch_size",
    "microbatch_size": "gradient_accumulation_steps accumulate_grad_batches micro_batch_size",
    "batch_size | microbatch_size": "minibatch_size",
    "clip_importance": "clip_is",
    "num_minibatches": "n_minibatches nminibatches num_mini_batch minibatches",
    "clip_range": "clip clip_param clip_coef cliprange clip_ratio eps_clip clip_epsilon",
    "clip_range_vf": "clip_value vf_clip_param clip_vloss",
    "value_coef": "vf_coef vf_loss_coeff value_loss_coef critic_coef",
    "entropy_coef | log_alpha_init": "ent_coef entropy_coeff entropy_weight entropy_beta",
    "anneal_clip_range": "anneal_clip",
    "anneal_entropy_coef": "anneal_ent_coef entropy_coeff_schedule",
    "target_entropy": "entropy_per_action",
    "target_entropy_ratio": "entropy_share target_entropy target_entropy_scale",
    "log_alpha_init": "initial_alpha init_temperature",
    "max_grad_norm": "grad_clip clip_grad_norm max_gradient_norm grad_norm_clip",
    "normalize_advantage": "norm_adv normalise_advantage normalize_advantages",
    "target_kl": "kl_target kl_coeff max_kl",
    "adam_eps": "adam_epsilon opt_eps",
    "clip_rho": "vtrace_clip_rho_threshold",
    "max_lag": "lag max_policy_lag max_staleness",
    # replay
    "buffer_size | replay_buffer_size": (
        "capacity replay_size memory_size replay_buffer_capacity max_buffer_size replay_buffer_config"
    ),
    "learning_starts": (
        "min_size learning_start warmup_steps start_steps min_replay_size initial_steps "
        "num_steps_sampled_before_learning_starts"
    ),
    "num_gradient_steps": "gradient_steps num_grad_updates",
    "samples_per_insert": "training_intensity replay_ratio utd utd_ratio updates_per_step",
    "target_update_interval": (
        "target_every target_network_update_freq target_network_frequency target_update_freq target_update_frequency "
        "target_update_period"
    ),
    "tau": "polyak polyak_tau soft_update",
    "prioritized": "prioritised prioritized_replay per",
    "priority_exponent": "alpha prioritized_replay_alpha per_alpha priority_alpha",
    "importance_sampling_exponent": "beta prioritized_replay_beta per_beta priority_beta",
    "n_step": "lookahead multi_step n_step_returns",
    "max_priority_weight": "eta",
    "initial_priorities": "first_priorities",
    "replay_buffer_size": "replay_capacity",
    "sequence_length": "length",
    "value_rescaling": "rescale value_function_rescaling",
    "huber_delta": "huber huber_param",
    "double": "double_q double_dqn",
    "num_atoms": "n_quantiles n_atoms",
    "policy_delay": "actor_every policy_frequency",
    # exploration
    "epsilon_start": "exploration_initial_eps start_e initial_epsilon eps_start",
    "epsilon_end": "exploration_final_eps end_e final_epsilon eps_end",
    "epsilon_steps": "exploration_fraction epsilon_timesteps eps_decay epsilon_decay epsilon_decay_steps",
    "epsilon_start epsilon_end epsilon_steps": "epsilon exploration_rate exploration_config",
    "exploration_noise": "noise action_noise",
    "target_policy_noise": "target_noise policy_noise",
    "target_noise_clip": "noise_clip",
    "noisy_std": "sigma0 sigma_init",
    "epsilon_base": "ladder",
    # network
    "hidden_sizes": "hidden net_arch hidden_dim hidden_size fcnet_hiddens layers num_hidden",
    "activation": "activation_fn fcnet_activation",
    "network hidden_sizes activation": "policy_kwargs policy model model_config rl_module_spec",
    "features_extractor": "features_extractor_class features_extractor_kwargs encoder",
    "rnn_type=lstm": "use_lstm lstm recurrent cell",
    "rnn_size": "num_units lstm_cell_size lstm_hidden_size",
}
"""Alternatives, separated by a bar -> names of other libraries. The last entry that has a name counts."""

FOREIGN: Mapping[str, tuple[str, ...]] = {
    name: tuple(targets.split(" | ")) for targets, names in _NAMES.items() for name in names.split()
}

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "apex": ("apex_dqn", ""),
    "c51": ("dqn", "distribution=categorical"),
    "qr_dqn": ("dqn", "distribution=quantile"),
    "qrdqn": ("dqn", "distribution=quantile"),
    "ddqn": ("dqn", ""),
    "double_dqn": ("dqn", ""),
    "dueling_dqn": ("dqn", "dueling=True"),
    "recurrent_ppo": ("ppo", "rnn_type=lstm"),
    "ppo_lstm": ("ppo", "rnn_type=lstm"),
    "maskable_ppo": ("ppo", ""),
    "reinforce": ("pg", ""),
    "vpg": ("pg", ""),
    "impact": ("appo", ""),
    "self_play": ("multi", "policy=past:ppo:AGENTS"),
}
"""Another library's name of an algorithm -> its name in levada, and the field to set."""


def here(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Equivalents of a foreign name among the known names; empty if there are none."""
    for together in FOREIGN.get(name, ()):
        found = tuple(target for target in together.split(" ") if target.partition("=")[0] in known)
        if found:
            return found
    return ()


def in_python(targets: Collection[str]) -> str:
    """Format names as keyword arguments.

    >>> in_python(("hidden_sizes", "activation")), in_python(("device=cuda",))
    ("'hidden_sizes' or 'activation'", "device='cuda'")
    """
    return " or ".join(_argument(target) for target in targets)


def on_the_command_line(targets: Collection[str]) -> str:
    """Format names as command-line options."""
    return " or ".join(option(target) for target in targets)


def option(target: str) -> str:
    """Format a name, with its example if any, as a command-line option.

    >>> option("num_envs"), option("until=steps=5")
    ('--num-envs', '--until steps=5')
    """
    name, _, example = target.partition("=")
    return f"--{name.replace('_', '-')} {example}".rstrip()


def _argument(target: str) -> str:
    name, _, example = target.partition("=")
    if not example:
        return repr(name)
    if name == "env_kwargs":
        key, _, value = example.partition("=")
        return f"Task(env, env_kwargs={{{key!r}: {value}}})"
    is_plain = example in ("True", "False") or example.replace("_", "").isdigit()
    return f"{name}={example if is_plain else repr(example)}"
