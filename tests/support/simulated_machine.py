"""A simulated machine: what a candidate does on it is known, and differs from what the planner assumes."""

from __future__ import annotations

from dataclasses import dataclass

from levada.run.planner.candidates import Candidate, Variant
from levada.run.planner.costs import Measured


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Costs per env step in seconds, if nothing else is said."""

    num_cores: int = 2
    env_s: float
    """Processor time of a step of one environment."""
    wait_s: float = 0.0
    """Time that one environment only waits in a step; those of a shard wait one after the other."""
    vector_s: float = 1e-5
    """Processor time of a step of a shard, however many environments it has."""
    learn_s: float
    thread_gain: float = 0.3
    """Part of learning that threads share."""
    message_s: float = 1e-3
    """Time of a message about an item."""
    contention: float = 0.1
    """How much slower everything is if all cores are busy."""
    releases_gil: bool = False
    serial_fraction: float = 0.0
    """Fraction of the shorter of sampling and learning that does not overlap with the longer, although a lag allows it."""
    item_steps: float = 256.0

    def measure(self, candidate: Candidate) -> Measured:
        """Measure a candidate without noise."""
        variant = candidate.variant
        cpu_s = self.env_s + self.vector_s / variant.num_envs
        threads = min(variant.threads, self.num_cores)
        learn_s = self.learn_s * (1.0 - self.thread_gain + self.thread_gain / threads)
        learn_cpu_s = learn_s * threads
        item_steps = self.item_steps * variant.item_scale
        if candidate.kind == "inline":
            per_step_s = cpu_s + self.wait_s + learn_s
        else:
            message_s = (1.0 if candidate.kind == "processes" else 0.05) * self.message_s / item_steps
            busy = min(1.0, (candidate.workers + threads - 1) / self.num_cores)
            slower = 1.0 + self.contention * busy
            sampling_s = slower * (cpu_s + self.wait_s) * candidate.longest + message_s
            learn_s *= slower
            least_s = slower * (cpu_s + learn_cpu_s + message_s) / self.num_cores
            if candidate.kind == "threads" and not self.releases_gil:
                least_s = 1.3 * (cpu_s + learn_s)
            longer_s, shorter_s = sorted((sampling_s, learn_s + message_s), reverse=True)
            together_s = longer_s + (self.serial_fraction if variant.overlaps else 1.0) * shorter_s
            per_step_s = max(together_s, least_s)
        return Measured(
            steps_per_s=1.0 / per_step_s, sampling_s=cpu_s + self.wait_s, sampling_cpu_s=cpu_s,
            fixed=0.3 * self.vector_s / (self.vector_s + self.env_s + self.wait_s), learning_s=learn_s,
            learning_cpu_s=learn_cpu_s, item_steps=item_steps,
        )  # fmt: skip


def variants() -> list[Variant]:
    """Return variants as those of PPO with 8 environments, the given one first."""
    found = []
    for total in (8, 16, 32, 64):
        for shards in (1, 2, 4):
            for lag in (0, 1):
                for number in (1, 2):
                    given = {"shards": 1, "num_envs": 8, "max_lag": 0}
                    settings = {"shards": shards, "num_envs": total // shards, "max_lag": lag}
                    changes = tuple(pair for pair in settings.items() if pair not in given.items())
                    found.append(
                        Variant(
                            changes=changes, threads=number, shards=shards, num_envs=total // shards,
                            item_scale=1.0 / shards, overlaps=lag > 0,
                        )
                    )  # fmt: skip
    return found
