"""What needs no Ray: names, settings, and the error where it is not installed."""

import sys

import pytest
from support.processes import samples

from levada.api import deployment
from levada.flow import DeploymentError
from levada.runners.ray import Ray


def test_by_name():
    assert deployment("ray") == Ray()
    assert str(deployment("ray:8")) == "ray:8"
    assert Ray.parse(":2,address=auto,threads=2") == Ray(workers=2, address="auto", threads=2)
    assert deployment("ray:2,learners=beside") == Ray(workers=2, learners="beside")
    assert str(Ray(workers=2, learners="beside")) == "ray:2,learners=beside"
    with pytest.raises(DeploymentError, match=r"workers=0.*expected an integer >= 1"):
        Ray(workers=0)
    with pytest.raises(DeploymentError, match=r"learners='near'.*expected an integer >= 1, or 'beside'"):
        Ray(learners="near")
    with pytest.raises(DeploymentError, match="on='ray2'"):
        deployment("ray2")


def test_the_error_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("transport", "server"):
        monkeypatch.delitem(sys.modules, f"levada.runners.ray.{name}", raising=False)
    with pytest.raises(DeploymentError, match=r"pip install 'levada\[ray\]'"):
        Ray(workers=2).open(samples.small_ppo(0))
