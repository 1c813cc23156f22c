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
    "until", "seed", "on", "out", "env", "env_kwargs", "threads", "checkpoint_every_updates", "save_replays", "tensorboard",
    "display",
})  # fmt: skip
"""Options of every run that a hint may refer to."""

FOREIGN: Mapping[str, tuple[str, ...]] = {
    # length, place and output of a run
    **dict.fromkeys(
        ("total_timesteps", "n_timesteps", "timesteps_total", "num_env_steps_sampled_lifetime", "total_steps", "timesteps",
         "max_timesteps", "max_steps", "num_timesteps"),
        ("until=steps=100_000",),
    ),
    **dict.fromkeys(("num_updates", "num_iterations", "training_iteration", "n_updates"), ("until=updates=100",)),
    **dict.fromkeys(("n_episodes", "num_episodes", "max_episodes"), ("until=episodes=500",)),
    **dict.fromkeys(("stop", "target_reward", "stop_reward", "episode_return_mean"), ("until=return=475",)),
    **dict.fromkeys(
        ("num_workers", "n_workers", "num_env_runners", "num_rollout_workers", "num_processes", "n_jobs", "num_cpus"),
        ("on=processes:4 shards",),
    ),
    **dict.fromkeys(("cuda", "num_gpus", "use_gpu", "gpu", "num_gpus_per_learner"), ("device=cuda",)),
    **dict.fromkeys(("env_id", "env_name", "environment", "task", "gym_id"), ("env=CartPole-v1",)),
    **dict.fromkeys(("env_config", "env_args", "max_episode_steps"), ("env_kwargs=max_episode_steps=200",)),
    **dict.fromkeys(("tensorboard_log", "log_dir", "logdir", "exp_name", "storage_path", "run_name", "save_path"), ("out=DIR",)),
    **dict.fromkeys(("save_freq", "checkpoint_freq", "checkpoint_frequency", "save_interval"), ("checkpoint_every_updates=100",)),
    **dict.fromkeys(("verbose", "verbosity", "log_level"), ("quiet", "display=quiet")),
    **dict.fromkeys(("random_state", "random_seed", "manual_seed"), ("seed",)),
    **dict.fromkeys(("torch_compile", "use_compile", "jit"), ("compile",)),
    # sampling
    **dict.fromkeys(
        ("n_envs", "n_env", "nenvs", "num_environments", "num_envs_per_worker", "num_envs_per_env_runner", "num_actors"),
        ("num_envs",),
    ),
    **dict.fromkeys(
        ("n_steps", "nsteps", "rollout_fragment_length", "unroll_length", "rollout_length", "rollout_steps", "horizon"),
        ("num_steps",),
    ),
    **dict.fromkeys(("train_batch_size", "train_batch_size_per_learner"), ("batch_size", "shards num_envs num_steps")),
    **dict.fromkeys(("train_freq", "train_frequency"), ("samples_per_insert num_steps",)),
    **dict.fromkeys(("normalize", "norm_env", "vec_normalize"), ("normalize_obs normalize_reward",)),
    **dict.fromkeys(("norm_obs", "normalise_obs", "normalize_observation", "observation_filter"), ("normalize_obs",)),
    **dict.fromkeys(("norm_reward", "normalise_reward"), ("normalize_reward",)),
    # optimization
    **dict.fromkeys(
        ("lr", "step_size", "alpha_lr", "actor_lr", "critic_lr", "policy_lr", "q_lr", "pi_lr", "vf_lr", "optimizer_lr"),
        ("learning_rate",),
    ),
    **dict.fromkeys(("anneal_lr", "use_linear_lr_decay"), ("anneal_steps",)),
    **dict.fromkeys(("lr_schedule", "lr_scheduler"), ("anneal_steps learning_rate_schedule",)),
    **dict.fromkeys(("gamma", "discount_factor"), ("discount",)),
    **dict.fromkeys(("lambda", "lambda_", "lam", "gae_lam", "gae_tau"), ("gae_lambda",)),
    **dict.fromkeys(("n_epochs", "num_sgd_iter", "update_epochs", "noptepochs", "ppo_epoch", "epochs"), ("num_epochs",)),
    **dict.fromkeys(("batch_size", "sgd_minibatch_size", "mini_batch_size"), ("minibatch_size", "batch_size")),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "accumulate_grad_batches", "micro_batch_size"), ("microbatch_size", "minibatch_size")
    ),
    **dict.fromkeys(("n_minibatches", "nminibatches", "num_mini_batch", "minibatches"), ("num_minibatches",)),
    **dict.fromkeys(("clip", "clip_param", "clip_coef", "cliprange", "clip_ratio", "eps_clip", "clip_epsilon"), ("clip_range",)),
    **dict.fromkeys(("clip_value", "vf_clip_param", "clip_vloss"), ("clip_range_vf",)),
    **dict.fromkeys(("vf_coef", "vf_loss_coeff", "value_loss_coef", "critic_coef"), ("value_coef",)),
    **dict.fromkeys(("ent_coef", "entropy_coeff", "entropy_weight", "entropy_beta"), ("entropy_coef", "log_alpha_init")),
    **dict.fromkeys(("anneal_clip",), ("anneal_clip_range",)),
    **dict.fromkeys(("entropy_per_action",), ("target_entropy",)),
    **dict.fromkeys(("entropy_share", "target_entropy", "target_entropy_scale"), ("target_entropy_ratio",)),
    **dict.fromkeys(("initial_alpha", "init_temperature"), ("log_alpha_init",)),
    **dict.fromkeys(("grad_clip", "clip_grad_norm", "max_gradient_norm", "grad_norm_clip"), ("max_grad_norm",)),
    **dict.fromkeys(("norm_adv", "normalise_advantage", "normalize_advantages"), ("normalize_advantage",)),
    **dict.fromkeys(("kl_target", "kl_coeff", "max_kl"), ("target_kl",)),
    **dict.fromkeys(("adam_epsilon", "opt_eps"), ("adam_eps",)),
    **dict.fromkeys(("vtrace_clip_rho_threshold",), ("clip_rho",)),
    **dict.fromkeys(("lag", "max_policy_lag", "max_staleness"), ("max_lag",)),
    # replay
    **dict.fromkeys(
        ("capacity", "replay_size", "memory_size", "replay_buffer_capacity", "max_buffer_size", "replay_buffer_config"),
        ("buffer_size", "replay_buffer_size"),
    ),
    **dict.fromkeys(
        ("min_size", "learning_start", "warmup_steps", "start_steps", "min_replay_size", "initial_steps",
         "num_steps_sampled_before_learning_starts"),
        ("learning_starts",),
    ),
    **dict.fromkeys(("gradient_steps", "num_grad_updates"), ("num_gradient_steps",)),
    **dict.fromkeys(("training_intensity", "replay_ratio", "utd", "utd_ratio", "updates_per_step"), ("samples_per_insert",)),
    **dict.fromkeys(
        ("target_every", "target_network_update_freq", "target_network_frequency", "target_update_freq",
         "target_update_frequency", "target_update_period"),
        ("target_update_interval",),
    ),
    **dict.fromkeys(("polyak", "polyak_tau", "soft_update"), ("tau",)),
    **dict.fromkeys(("prioritised", "prioritized_replay", "per"), ("prioritized",)),
    **dict.fromkeys(("alpha", "prioritized_replay_alpha", "per_alpha", "priority_alpha"), ("priority_exponent",)),
    **dict.fromkeys(("beta", "prioritized_replay_beta", "per_beta", "priority_beta"), ("importance_sampling_exponent",)),
    **dict.fromkeys(("lookahead", "multi_step", "n_step_returns"), ("n_step",)),
    **dict.fromkeys(("eta",), ("max_priority_weight",)),
    **dict.fromkeys(("first_priorities",), ("initial_priorities",)),
    **dict.fromkeys(("replay_capacity",), ("replay_buffer_size",)),
    **dict.fromkeys(("length",), ("sequence_length",)),
    **dict.fromkeys(("rescale", "value_function_rescaling"), ("value_rescaling",)),
    **dict.fromkeys(("huber", "huber_param"), ("huber_delta",)),
    **dict.fromkeys(("double_q", "double_dqn"), ("double",)),
    **dict.fromkeys(("n_quantiles", "n_atoms"), ("num_atoms",)),
    **dict.fromkeys(("actor_every", "policy_frequency"), ("policy_delay",)),
    # exploration
    **dict.fromkeys(("exploration_initial_eps", "start_e", "initial_epsilon", "eps_start"), ("epsilon_start",)),
    **dict.fromkeys(("exploration_final_eps", "end_e", "final_epsilon", "eps_end"), ("epsilon_end",)),
    **dict.fromkeys(
        ("exploration_fraction", "epsilon_timesteps", "eps_decay", "epsilon_decay", "epsilon_decay_steps"), ("epsilon_steps",)
    ),
    **dict.fromkeys(("epsilon", "exploration_rate", "exploration_config"), ("epsilon_start epsilon_end epsilon_steps",)),
    **dict.fromkeys(("noise", "action_noise"), ("exploration_noise",)),
    **dict.fromkeys(("target_noise", "policy_noise"), ("target_policy_noise",)),
    **dict.fromkeys(("noise_clip",), ("target_noise_clip",)),
    **dict.fromkeys(("sigma0", "sigma_init"), ("noisy_std",)),
    **dict.fromkeys(("ladder",), ("epsilon_base",)),
    # network
    **dict.fromkeys(
        ("hidden", "net_arch", "hidden_dim", "hidden_size", "fcnet_hiddens", "layers", "num_hidden"), ("hidden_sizes",)
    ),
    **dict.fromkeys(("activation_fn", "fcnet_activation"), ("activation",)),
    **dict.fromkeys(("policy_kwargs", "policy", "model", "model_config", "rl_module_spec"), ("network hidden_sizes activation",)),
    **dict.fromkeys(("features_extractor_class", "features_extractor_kwargs", "encoder"), ("features_extractor",)),
    **dict.fromkeys(("use_lstm", "lstm", "recurrent", "cell"), ("rnn_type=lstm",)),
    **dict.fromkeys(("num_units", "lstm_cell_size", "lstm_hidden_size"), ("rnn_size",)),
}  # fmt: skip

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
