"""The model card of a run: README.md with metadata in the form that the Hugging Face Hub reads.

The names in a run may be anything, and are shown as text: they are escaped for Markdown, HTML and YAML.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from levada._version import __version__
from levada.flow.mistakes import plural
from levada.hub.repository import CURVE, REPORT
from levada.rl.acting.evaluation import Evaluation
from levada.run.display.printable import printable
from levada.run.display.text import number_text
from levada.run.returns import RETURN_WINDOW
from levada.run.storage.config import RunConfig
from levada.run.summary import Summary

Condition: TypeAlias = Literal["trust", "arguments"] | None
"""What loading needs on another machine: consent to code that the run names, or an environment or an algorithm that cannot be
named; None: nothing."""

MOST_CHARS: Final = 200
"""Length at which a name or a value is cut."""
MOST_ROWS: Final = 300
"""Number of settings that are shown."""
_NOT_SHOWN: Final = frozenset({"out", "config", "quiet", "json", "watch", "trace", "log", "seeds", "num_parallel"})
"""Settings of what a run writes and shows."""
_TASK: Final = "reinforcement-learning"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a model card says."""

    repo_id: str
    config: RunConfig
    summary: Summary
    """At the checkpoint that is handed on."""
    evaluations: Mapping[str, Evaluation]
    """By policy; empty if no episodes were played."""
    seed: int
    """Of these episodes."""
    has_several: bool
    """Whether several policies act in one environment."""
    files: Sequence[str]
    """Names of the other files."""
    condition: Condition

    def text(self) -> str:
        """Return the text of README.md."""
        what, env = _code(self.summary.algorithm), _code(self.summary.env)
        version = _code(self.config.versions.get("levada") or __version__)
        learned = f"{plural(self.summary.updates, 'update')}, {plural(self.summary.env_steps, 'env step')}"
        parts = [
            f"---\n{self._metadata()}\n---",
            f"# {what} on {env}",
            f"A policy trained with {what} on {env} by levada {version}: {learned}.",
            "## Return",
            self._returns(),
        ]
        if CURVE in self.files:
            parts.append(f"![Mean return of {RETURN_WINDOW} episodes during training]({CURVE})")
        parts += ["## Use", self._use(), "## Training", self._training(), "## Configuration", self._configuration()]
        return "\n\n".join(parts) + "\n"

    def _metadata(self) -> str:
        from huggingface_hub import EvalResult, ModelCardData

        env = _line(self.summary.env)
        results = [
            EvalResult(
                task_type=_TASK, task_name=_TASK, dataset_type=env, dataset_name=env, metric_type="mean_reward",
                metric_name=f"mean_reward of {_line(name)}" if self.has_several else "mean_reward",
                metric_value=f"{_plain(found.mean)} +/- {_plain(found.std)}",
                metric_args={"num_episodes": len(found.episodes), "deterministic": found.deterministic, "seed": self.seed},
            )
            for name, found in self.evaluations.items()
            if math.isfinite(found.mean) and math.isfinite(found.std)
        ]  # fmt: skip
        if not self.evaluations and (mean := self.summary.return_mean_100) is not None:
            results = [
                EvalResult(
                    task_type=_TASK, task_name=_TASK, dataset_type=env, dataset_name=env, metric_type="mean_reward",
                    metric_name="mean_reward of the last episodes of training", metric_value=_plain(mean),
                )
            ]  # fmt: skip
        data = ModelCardData(
            library_name="levada",
            pipeline_tag=_TASK,
            tags=[_tag(self.summary.env), _tag(self.summary.algorithm), _TASK, "deep-reinforcement-learning", "levada"],
            model_name=self.repo_id.rpartition("/")[2],
            eval_results=results or None,
        )
        return str(data.to_yaml())

    def _returns(self) -> str:
        summary = self.summary
        if self.evaluations:
            found = next(iter(self.evaluations.values()))
            how = "deterministic" if found.deterministic else "sampled"
            rows = [
                (_code(name), str(len(each.episodes)), f"{number_text(each.mean)} +- {number_text(each.std)}",
                 f"{number_text(float(each.returns.min()))} to {number_text(float(each.returns.max()))}")
                for name, each in self.evaluations.items()
            ]  # fmt: skip
            about = (
                f"Evaluated with {how} actions and seed {self.seed}. The return is the undiscounted sum of the rewards of an "
                "episode; mean +- standard deviation over the episodes."
            )
            return f"{about}\n\n{_table(('policy', 'episodes', 'return', 'range'), rows)}"
        means = {name: each.return_mean_100 for name, each in summary.policies.items()} or {
            "policy": summary.return_mean_100
        }
        training = [(_code(name), "-" if mean is None else number_text(mean)) for name, mean in means.items()]
        about = (
            f"Not evaluated. This is the mean return of the last {RETURN_WINDOW} episodes of training, or of all if there were "
            "fewer, with the actions of training:"
        )
        return f"{about}\n\n{_table(('policy', 'return of training'), training[:MOST_ROWS])}"

    def _use(self) -> str:
        url = f"hf://{self.repo_id}"
        more = {"trust": ", trust=True", "arguments": ", env=..., algorithm=...", None: ""}[self.condition]
        trust = " --trust" if self.condition == "trust" else ""
        shell = ["pip install 'levada[hub]'"]
        if self.condition != "arguments":
            shell.append(f"levada eval {url}{trust}")
        parts = [
            {
                "trust": "The run names code that is not in this repository, or files that its environment opens: see `env`, "
                "`env_kwargs` and `algorithm_class` [below](#configuration). Loading it needs them, and executes this code.",
                "arguments": "The run was trained on an environment or an algorithm that cannot be imported by name: give it "
                "as `env` or `algorithm`.",
                None: "",
            }[self.condition],
            _block("sh", *shell),
            _block(
                "python", "import levada as lv", "", f'run = lv.load("{url}"{more})',
                "print(list(run.policies))" if self.has_several else "action = run.policy.act(observation)",
            ),
        ]  # fmt: skip
        onnx = [name for name in self.files if name.endswith(".onnx")]
        if onnx:
            parts.append(f"Without levada: {', '.join(map(_code, onnx))} for ONNX Runtime, with deterministic actions.")
        if self.condition != "arguments":
            parts += [
                "To train on, with new episodes:",
                _block(
                    "sh", f"hf download {self.repo_id} --local-dir run",
                    f"levada resume run --fresh-episodes{trust} --until steps={2 * max(1, self.summary.env_steps)}",
                ),
            ]  # fmt: skip
        if REPORT in self.files:
            parts.append(f"`{REPORT}` shows the training in a browser: its speed, its flow, its learning curves.")
        return "\n\n".join(part for part in parts if part)

    def _training(self) -> str:
        summary, versions = self.summary, self.config.versions
        rows = [
            ("env steps", f"{summary.env_steps:,}"),
            ("updates", f"{summary.updates:,}"),
            ("episodes", f"{summary.episodes:,}"),
            ("wall time", f"{summary.wall_s:,.1f} s"),
            ("stopped by", _code(summary.stopped_by)),
            ("seed", str(summary.seed)),
            ("deployment", _code(summary.deployment)),
            ("threads", str(summary.threads)),
            ("precision", _code(summary.precision)),
            ("device", _code(summary.device)),
            *((f"machine: {_code(name)}", _code(value)) for name, value in summary.machine.items()),
            *((f"version: {_code(name)}", _code(value)) for name, value in versions.items() if value is not None),
            ("hash of the flow", _code(summary.flow_hash)),
        ]
        if summary.params_sha256 is not None:
            rows.append(("params_sha256", _code(summary.params_sha256)))
        return _table(("", ""), rows[:MOST_ROWS])

    def _configuration(self) -> str:
        settings = [(name, setting) for name, setting in self.config.settings.items() if name not in _NOT_SHOWN]
        rows = [(_code(name), _code(_value(setting.value)), setting.origin) for name, setting in settings[:MOST_ROWS]]
        table = _table(("setting", "value", "from"), rows)
        left = len(settings) - len(rows)
        return table + (f"\n\n{plural(left, 'more setting')}: see config.json." if left else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _block(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _code(text: str) -> str:
    r"""Return text as code; what would end the code or a cell of a table is written as entities instead.

    >>> print(_code("CartPole-v1"), _code("`<b>`"), _code("a\n# b"))
    `CartPole-v1` &#96;&#60;b&#62;&#96; `a # b`
    """
    text = _line(text)
    if not text:
        return ""
    if not re.search(r"[`|\\]", text):
        return f"`{text}`"
    return "".join(c if c.isalnum() or c == " " or not c.isascii() else f"&#{ord(c)};" for c in text)


def _tag(text: str) -> str:
    """Return text as a tag; a colon would make it one of the Hub's own, such as `license:mit`.

    >>> _tag("ALE/Pong-v5"), _tag("license: mit")
    ('ALE/Pong-v5', 'license-mit')
    """
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", text).strip("-")[:60] or "env"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(value: float) -> str:
    """Return a number as leaderboards of the Hub read it: without separators of thousands.

    >>> _plain(12345.678), _plain(0.00123), _plain(0.0)
    ('12345.68', '0.00123', '0.00')
    """
    return f"{value:.2f}" if value == 0.0 or 0.1 <= abs(value) < 1e9 else f"{value:.3g}"


def _line(text: str) -> str:
    """Return text as one line of limited length, without control characters."""
    text = " ".join(printable(text[: MOST_CHARS + 1]).split())
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}..."
