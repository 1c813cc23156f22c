"""Code in the documentation is executed: blocks of Markdown files, and examples in docstrings of the package.

- python: runs, in one namespace per document, in a directory that is thrown away.
- output, right after it: must equal what the block printed; `...` stands for anything.
- py: an excerpt of the source, which does not run; tests/test_docs.py compares it.
- sh: is only read; but where an output block follows, its `levada` commands run, and must print that.
"""

from __future__ import annotations

import doctest
import io
import os
import shlex
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout

import levada  # noqa: F401  before numpy and torch: it fixes the level of their instructions, as in what tests start

# isort: split

import pytest
import torch
from hypothesis import HealthCheck, settings
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from levada.cli import main
from levada.runners.processes.ipc.forkserver import preload

# how long an example takes says more about the machine than about what is tested
settings.register_profile("levada", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("levada")


def pytest_configure() -> None:
    """A job in the background begins with Ctrl-C or SIGHUP ignored, and so would the programs that tests start and interrupt."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with few tests come first: these are the long ones, and no worker should be left with one at the end."""
    num_tests = Counter(item.path for item in items)
    items.sort(key=lambda item: num_tests[item.path])


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _workers_find_torch_loaded() -> None:
    """Else each worker imports it, for more than a second, if the first test that starts one needs none."""
    preload(["levada.rl.acting.sampler", "levada.rl.acting.step_sampler"])


@pytest.fixture(autouse=True, scope="session")
def _a_key_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are signed with the user's key; tests make one that is thrown away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _own_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wandb replaces `sys.exit` for the rest of the process."""
    monkeypatch.setattr(sys, "exit", sys.exit)


def _in_a_scratch_directory(namespace: dict[str, object]) -> None:
    """Documents train: what they write goes to a directory that is thrown away."""
    namespace["__name__"] = "__main__"  # a block is what a user would write in a script
    namespace["_scratch"] = scratch = tempfile.TemporaryDirectory()
    namespace["_before"] = os.getcwd()
    namespace["_exit"] = sys.exit
    os.chdir(scratch.name)


def _back(namespace: dict[str, object]) -> None:
    os.chdir(str(namespace["_before"]))
    sys.exit = namespace["_exit"]  # type: ignore[assignment]
    namespace["_scratch"].cleanup()  # type: ignore[attr-defined]


class _Python(PythonEvaluator):
    """Run a block and keep what it prints."""

    def __call__(self, example: Example) -> None:
        __tracebackhide__ = True
        printed = io.StringIO()
        example.namespace.pop("_commands", None)
        try:
            with redirect_stdout(printed):
                super().__call__(example)
        finally:
            print(printed.getvalue(), end="")
            example.namespace["_printed"] = printed.getvalue()


def _shell(example: Example) -> None:
    """Keep the commands, in case an output follows."""
    example.namespace["_commands"] = str(example.parsed).splitlines()


def _output(example: Example) -> str | None:
    commands = example.namespace.pop("_commands", None)
    got = example.namespace["_printed"] if commands is None else _run(commands)
    expected = doctest.Example("", str(example.parsed))
    checker = doctest.OutputChecker()
    if checker.check_output(expected.want, got, doctest.ELLIPSIS):
        return None
    return checker.output_difference(expected, got, doctest.ELLIPSIS)


def _run(commands: list[str]) -> str:
    """Execute `levada ...` lines in this process."""
    printed = io.StringIO()
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[:1] == ["levada"]:
            with redirect_stdout(printed):
                code = main(words[1:])
            assert code == 0, f"`{command}` gave exit code {code}"
    return printed.getvalue()


_python = PythonCodeBlockParser()
_python.codeblock_parser = CodeBlockParser("python", _Python())
_documents = Sybil(
    parsers=[_python, CodeBlockParser("sh", _shell), CodeBlockParser("output", _output)],
    patterns=["*.md"],
    excludes=["CHANGELOG.md", ".venv/**", ".bench/**"],
    setup=_in_a_scratch_directory,
    teardown=_back,
)
_docstrings = Sybil(parsers=[DocTestParser()], path="src/levada", pattern="*.py")

pytest_collect_file = (_documents + _docstrings).pytest()
