"""Which processes are run, and in which order: in turn, A B A B ..., each turn with a seed of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.compare.async_presets import ASYNC_CARTPOLE
from benchmarks.compare.atari_presets import PONG
from benchmarks.compare.jax_presets import JAX_ANT, JAX_CARTPOLE, JAX_CRAFTAX
from benchmarks.compare.multi_agent_presets import MAPPO_SPREAD, TWO_POLICIES
from benchmarks.compare.off_policy_presets import DQN_CARTPOLE, SAC_HALFCHEETAH
from benchmarks.compare.presets import PPO_CARTPOLE, Benchmark, Form, Preset
from benchmarks.compare.ray_presets import RAY_IMPALA_CARTPOLE
from levada.rl.envs.functional.names import is_functional
from levada.rl.policies.precision import has_bfloat16

Part = Literal["warm-up", "steps/s", "parts", "solve", "threads"]
"""What a process is run for; a warm-up is not counted."""

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "ppo-cartpole": PPO_CARTPOLE,
    "jax-cartpole": JAX_CARTPOLE,
    "jax-ant": JAX_ANT,
    "jax-craftax": JAX_CRAFTAX,
    "async-cartpole": ASYNC_CARTPOLE,
    "dqn-cartpole": DQN_CARTPOLE,
    "sac-halfcheetah": SAC_HALFCHEETAH,
    "pong": PONG,
    "ray-impala-cartpole": RAY_IMPALA_CARTPOLE,
    "mappo-spread": MAPPO_SPREAD,
    "two-policies": TWO_POLICIES,
}
_QUICK_SOLVE_STEPS: Final = 20_480


def peers_of(benchmark: str) -> tuple[str, ...]:
    """Whom it compares with."""
    return tuple(dict.fromkeys(preset.peer for preset in BENCHMARKS[benchmark].presets))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked for on the command line."""

    name: str
    """Of the benchmark."""
    peers: tuple[str, ...]
    settings: tuple[str, ...]
    """Names of presets."""
    runs: int
    seed: int
    quick: bool
    only_peers: bool
    compare_threads: bool
    json: Path | None

    @property
    def benchmark(self) -> Benchmark:
        """The one of this name."""
        return BENCHMARKS[self.name]

    @property
    def presets(self) -> tuple[Preset, ...]:
        """The chosen ones of the chosen peers."""
        return tuple(
            preset for preset in self.benchmark.presets if preset.peer in self.peers and preset.name in self.settings
        )

    @property
    def peers_to_run(self) -> tuple[str, ...]:
        """The chosen peers without those that are only quoted."""
        return tuple(dict.fromkeys(preset.peer for preset in self.presets if preset.script))

    @property
    def has_solve(self) -> bool:
        """Whether seconds to a return are measured."""
        return not self.compare_threads and any(preset.solve_steps is not None for preset in self.presets)

    @property
    def target_return(self) -> int:
        """What is to be reached: the mean return that solves CartPole, or one that short runs come to."""
        return 50 if self.quick else 475

    def steps(self, preset: Preset, *, is_levada: bool = False) -> int:
        """For how long steps/s are counted."""
        if self.quick:
            return self.benchmark.quick_steps
        return (preset.levada_steps if is_levada else None) or preset.num_env_steps

    def solve_steps(self, num_env_steps: int) -> int:
        """Within how many the target is to be reached."""
        return _QUICK_SOLVE_STEPS if self.quick else num_env_steps


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process to time: a peer's script, or levada with the settings of a peer or with its own."""

    part: Part
    benchmark: Benchmark
    is_levada: bool
    preset: Preset | None = None
    """None: levada as it comes."""
    form: Form | None = None
    """Of levada, with the settings of a peer."""
    turn: int = 0
    num_env_steps: int | None
    """None: as many as it likes."""
    target_return: int | None = None
    """Mean return of 100 episodes at which the process ends."""
    threads: int = 1
    """Of a peer. Levada chooses its own."""
    is_cold: bool = False
    """Whether levada finds no code that an earlier process compiled."""

    @property
    def who(self) -> str:
        """The name of its row in the tables."""
        if self.is_levada or self.preset is None:
            return "levada, no compiled code kept" if self.is_cold else "levada"
        threads = f", {self.threads} thread{'s' if self.threads > 1 else ''}" if self.part == "threads" else ""
        return self.preset.name + threads

    @property
    def title(self) -> str:
        """What the screen calls it."""
        words = [f"{self.preset.name} settings"] if self.preset and self.is_levada else []
        settings = f" ({', '.join([*words, self.form.name] if self.form else words)})" if words else ""
        turn = "" if self.part == "warm-up" else f", turn {self.turn + 1}"
        return f"{self.part}: {self.who}{settings}{turn}"

    @property
    def num_cores(self) -> int | None:
        """Number of cores that the process is kept to; None: all. Levada beside a peer that keeps itself to one core."""
        return 1 if self.benchmark.is_pinned and self.is_levada and self.threads == 1 else None

    @property
    def algorithm(self) -> str:
        """Of levada."""
        return (self.preset.algorithm if self.preset else None) or self.benchmark.algorithm

    @property
    def levada_fields(self) -> Mapping[str, object]:
        """Fields of levada's algorithm: the peer's settings, and those of the form. Empty: levada as it comes."""
        return {**(self.preset.levada if self.preset else {}), **(self.form.fields if self.form else {})}


def make_jobs(plan: Plan) -> Iterator[Job]:
    """All processes, in the order in which they run."""
    yield from _warm_ups(plan)
    for preset in plan.presets:
        for turn in range(plan.runs):
            yield from _threads(plan, preset, turn) if plan.compare_threads else _throughput(plan, preset, turn)
    if plan.has_solve:
        for turn in range(plan.runs):
            yield from _solve(plan, turn)


def _warm_ups(plan: Plan) -> Iterator[Job]:
    """Each program once, so that its files are in memory."""
    benchmark = plan.benchmark
    num_env_steps = benchmark.warm_up_steps
    for preset in {preset.peer: preset for preset in plan.presets if preset.script}.values():
        yield Job(
            part="warm-up",
            benchmark=benchmark,
            is_levada=False,
            preset=preset,
            num_env_steps=num_env_steps,
            threads=preset.threads,
        )
    if not plan.only_peers:
        preset = plan.presets[0]
        yield Job(
            part="warm-up",
            benchmark=benchmark,
            is_levada=True,
            preset=preset,
            form=preset.forms[0],
            num_env_steps=num_env_steps,
        )


def _throughput(plan: Plan, preset: Preset, turn: int) -> Iterator[Job]:
    if plan.benchmark.parts is not None and not plan.only_peers:
        yield Job(part="parts", benchmark=plan.benchmark, is_levada=True, preset=preset, turn=turn, num_env_steps=None)
    peer = (None,) if preset.script else ()
    for form in peer if plan.only_peers else (*peer, *filter(_is_native, preset.forms)):
        yield Job(
            part="steps/s",
            benchmark=plan.benchmark,
            is_levada=form is not None,
            preset=preset,
            form=form,
            turn=turn,
            num_env_steps=plan.steps(preset, is_levada=form is not None),
            threads=preset.threads,
        )


def _is_native(form: Form) -> bool:
    """Whether the processor has the form's floating-point format. Where bfloat16 is emulated, a turn takes ten times as long."""
    return form.fields.get("precision") != "bfloat16" or has_bfloat16()


def _threads(plan: Plan, preset: Preset, turn: int) -> Iterator[Job]:
    num_env_steps = plan.steps(preset)
    for threads in (1, 2) if preset.script else ():
        yield Job(
            part="threads",
            benchmark=plan.benchmark,
            is_levada=False,
            preset=preset,
            turn=turn,
            num_env_steps=num_env_steps,
            threads=threads,
        )


def _solve(plan: Plan, turn: int) -> Iterator[Job]:
    for preset in plan.presets:
        if preset.solve_steps is not None:
            yield Job(
                part="solve",
                benchmark=plan.benchmark,
                is_levada=False,
                preset=preset,
                turn=turn,
                num_env_steps=plan.solve_steps(preset.solve_steps),
                target_return=plan.target_return,
                threads=preset.threads,
            )
    colds = (False, True) if is_functional(plan.benchmark.env) else (False,)
    for is_cold in () if plan.only_peers else colds:
        yield Job(
            part="solve",
            benchmark=plan.benchmark,
            is_levada=True,
            turn=turn,
            num_env_steps=plan.solve_steps(plan.benchmark.solve_steps),
            target_return=plan.target_return,
            is_cold=is_cold,
        )
