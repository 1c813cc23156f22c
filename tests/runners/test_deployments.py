"""What deployments have in common."""

from __future__ import annotations

import pytest

from levada.runners import deployments

BLAS, TORCH = {"user_api": "blas", "num_threads": 2}, {"user_api": "openmp", "num_threads": 1}


@pytest.mark.parametrize(("found", "expected"), [([BLAS, TORCH], 1), ([BLAS], 2), ([], 1)], ids=str)
def test_learners_elsewhere_have_as_many_threads_as_torch_has_here(monkeypatch, found, expected):
    monkeypatch.setattr(deployments, "threadpool_info", lambda: found)
    assert deployments.num_threads_here() == expected
