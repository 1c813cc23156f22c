"""Names that users of other libraries type first, and what each is called here.

`FOREIGN` is data: a name to what it is here, as alternatives of which the first counts that the algorithm has. An alternative is
one name, or several that belong together; `name=example` shows how an option is written.

>>> here("gamma", {"discount", "capacity"})
('discount',)
>>> here("batch_size", {"minibatch_size"}), here("batch_size", {"capacity"})
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
"""Options of every run that are names to answer with."""

FOREIGN: Mapping[str, tuple[str, ...]] = {
    # how long, where, what is written
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
    **dict.fromkeys(("normalize", "norm_env", "vec_normalize"), ("normalise_obs normalise_reward",)),
    **dict.fromkeys(("norm_obs", "normalize_obs", "normalize_observation", "observation_filter"), ("normalise_obs",)),
    **dict.fromkeys(("norm_reward", "normalize_reward"), ("normalise_reward",)),
    # optimisation
    **dict.fromkeys(
        ("lr", "step_size", "alpha_lr", "actor_lr", "critic_lr", "policy_lr", "q_lr", "pi_lr", "vf_lr", "optimizer_lr"),
        ("learning_rate",),
    ),
    **dict.fromkeys(("lr_schedule", "anneal_lr", "use_linear_lr_decay", "learning_rate_schedule"), ("anneal_steps",)),
    **dict.fromkeys(("gamma", "discount_factor"), ("discount",)),
    **dict.fromkeys(("lambda", "lambda_", "lam", "gae_lam", "gae_tau"), ("gae_lambda",)),
    **dict.fromkeys(("n_epochs", "num_sgd_iter", "update_epochs", "noptepochs", "ppo_epoch", "epochs"), ("num_epochs",)),
    **dict.fromkeys(("batch_size", "sgd_minibatch_size", "mini_batch_size"), ("minibatch_size", "batch_size")),
    **dict.fromkeys(("n_minibatches", "nminibatches", "num_mini_batch", "minibatches"), ("num_minibatches",)),
    **dict.fromkeys(("clip_range", "clip_param", "clip_coef", "cliprange", "clip_ratio", "eps_clip", "clip_epsilon"), ("clip",)),
    **dict.fromkeys(("clip_range_vf", "vf_clip_param", "clip_vloss"), ("clip_value",)),
    **dict.fromkeys(("vf_coef", "vf_loss_coeff", "value_loss_coef", "critic_coef"), ("value_coef",)),
    **dict.fromkeys(("ent_coef", "entropy_coeff", "entropy_weight", "entropy_beta"), ("entropy_coef", "log_alpha_init")),
    **dict.fromkeys(("target_entropy",), ("entropy_per_action entropy_share",)),
    **dict.fromkeys(("initial_alpha", "init_temperature"), ("log_alpha_init",)),
    **dict.fromkeys(("grad_clip", "clip_grad_norm", "max_gradient_norm", "grad_norm_clip"), ("max_grad_norm",)),
    **dict.fromkeys(("norm_adv", "normalize_advantage", "normalize_advantages"), ("normalise_advantage",)),
    **dict.fromkeys(("kl_target", "kl_coeff", "max_kl"), ("target_kl",)),
    **dict.fromkeys(("adam_epsilon", "opt_eps"), ("adam_eps",)),
    **dict.fromkeys(("vtrace_clip_rho_threshold",), ("clip_rho",)),
    **dict.fromkeys(("lag", "max_policy_lag", "max_staleness"), ("max_lag",)),
    # replay
    **dict.fromkeys(
        ("buffer_size", "replay_size", "memory_size", "replay_buffer_size", "replay_buffer_capacity", "max_buffer_size",
         "replay_buffer_config"),
        ("capacity",),
    ),
    **dict.fromkeys(
        ("learning_starts", "learning_start", "warmup_steps", "start_steps", "min_replay_size", "initial_steps",
         "num_steps_sampled_before_learning_starts"),
        ("min_size",),
    ),
    **dict.fromkeys(("gradient_steps", "num_grad_updates"), ("num_gradient_steps",)),
    **dict.fromkeys(("training_intensity", "replay_ratio", "utd", "utd_ratio", "updates_per_step"), ("samples_per_insert",)),
    **dict.fromkeys(
        ("target_update_interval", "target_network_update_freq", "target_network_frequency", "target_update_freq",
         "target_update_frequency", "target_update_period"),
        ("target_every",),
    ),
    **dict.fromkeys(("polyak", "polyak_tau", "soft_update"), ("tau",)),
    **dict.fromkeys(("prioritized", "prioritized_replay", "per"), ("prioritised",)),
    **dict.fromkeys(("prioritized_replay_alpha", "per_alpha"), ("alpha",)),
    **dict.fromkeys(("prioritized_replay_beta", "per_beta"), ("beta",)),
    **dict.fromkeys(("n_step", "multi_step", "n_step_returns"), ("lookahead",)),
    **dict.fromkeys(("double_q", "double_dqn"), ("double",)),
    **dict.fromkeys(("n_quantiles", "n_atoms"), ("num_atoms",)),
    **dict.fromkeys(("policy_delay", "policy_frequency"), ("actor_every",)),
    # exploration
    **dict.fromkeys(("exploration_initial_eps", "start_e", "initial_epsilon", "eps_start"), ("epsilon_start",)),
    **dict.fromkeys(("exploration_final_eps", "end_e", "final_epsilon", "eps_end"), ("epsilon_end",)),
    **dict.fromkeys(
        ("exploration_fraction", "epsilon_timesteps", "eps_decay", "epsilon_decay", "epsilon_decay_steps"), ("epsilon_steps",)
    ),
    **dict.fromkeys(("epsilon", "exploration_rate", "exploration_config"), ("epsilon_start epsilon_end epsilon_steps",)),
    **dict.fromkeys(("action_noise", "exploration_noise"), ("noise",)),
    **dict.fromkeys(("target_policy_noise", "policy_noise"), ("target_noise",)),
    **dict.fromkeys(("noise_clip",), ("target_noise_clip",)),
    **dict.fromkeys(("sigma0", "sigma_init"), ("noisy_std",)),
    # network
    **dict.fromkeys(
        ("net_arch", "hidden_sizes", "hidden_dim", "hidden_size", "fcnet_hiddens", "layers", "num_hidden"), ("hidden",)
    ),
    **dict.fromkeys(("activation_fn", "fcnet_activation"), ("activation",)),
    **dict.fromkeys(("policy_kwargs", "policy", "model", "model_config", "rl_module_spec"), ("network hidden activation",)),
    **dict.fromkeys(("use_lstm", "lstm", "recurrent"), ("cell=lstm",)),
    **dict.fromkeys(("lstm_cell_size", "lstm_hidden_size"), ("num_units",)),
}  # fmt: skip

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "apex": ("apex_dqn", ""),
    "c51": ("dqn", "distribution=categorical"),
    "qr_dqn": ("dqn", "distribution=quantile"),
    "qrdqn": ("dqn", "distribution=quantile"),
    "ddqn": ("dqn", ""),
    "double_dqn": ("dqn", ""),
    "dueling_dqn": ("dqn", "dueling=True"),
    "recurrent_ppo": ("ppo", "cell=lstm"),
    "ppo_lstm": ("ppo", "cell=lstm"),
    "maskable_ppo": ("ppo", ""),
    "reinforce": ("pg", ""),
    "vpg": ("pg", ""),
    "impact": ("appo", ""),
}
"""Another library's name of an algorithm -> what it is here, and the field that makes it so."""


def here(name: str, known: Collection[str]) -> tuple[str, ...]:
    """What a foreign name is called here, of the names that are known; empty if it is not known either."""
    for together in FOREIGN.get(name, ()):
        found = tuple(target for target in together.split(" ") if target.partition("=")[0] in known)
        if found:
            return found
    return ()


def in_python(targets: Collection[str]) -> str:
    """As keyword arguments.

    >>> in_python(("hidden", "activation")), in_python(("device=cuda",))
    ("'hidden' or 'activation'", "device='cuda'")
    """
    return " or ".join(_argument(target) for target in targets)


def on_the_command_line(targets: Collection[str]) -> str:
    """As options."""
    return " or ".join(option(target) for target in targets)


def option(target: str) -> str:
    """A name, perhaps with an example, as it stands on the command line.

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
