"""What the scripts of Stable-Baselines3, and of SBX, which is built on it, have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback

if TYPE_CHECKING:
    from _progress import Progress


class Report(BaseCallback):
    """Passes finished episodes and finished updates on to `Progress`, with the gradient steps so far."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._progress.episode(float(info["episode"]["r"]), self.num_timesteps)
        return not self._progress.solved

    def _on_rollout_start(self) -> None:
        if self.model._n_updates:
            self._progress.update(self.num_timesteps, self.model._n_updates)

    def _on_training_end(self) -> None:
        self._progress.end(self.num_timesteps, self.model._n_updates)
