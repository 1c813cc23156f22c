"""Code in the documentation is executed: python blocks of Markdown files, and examples in docstrings of the package."""

from __future__ import annotations

import pytest
import torch
from sybil import Sybil
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown import PythonCodeBlockParser


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def _in_a_scratch_directory(namespace: dict[str, object]) -> None:
    """Documents train: what they write goes to a directory that is thrown away."""
    import os
    import tempfile

    namespace["_scratch"] = scratch = tempfile.TemporaryDirectory()
    namespace["_before"] = os.getcwd()
    os.chdir(scratch.name)


def _back(namespace: dict[str, object]) -> None:
    import os

    os.chdir(str(namespace["_before"]))
    namespace["_scratch"].cleanup()  # type: ignore[attr-defined]


_documents = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["*.md"],
    excludes=["CHANGELOG.md", ".venv/**", ".bench/**"],
    setup=_in_a_scratch_directory,
    teardown=_back,
)
_docstrings = Sybil(parsers=[DocTestParser()], patterns=["src/levada/**/*.py"])

pytest_collect_file = (_documents + _docstrings).pytest()
