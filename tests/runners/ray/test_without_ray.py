"""What needs no Ray: names, settings, and the error where it is not installed."""

import sys
from types import SimpleNamespace

import pytest
from support.processes import samples

from levada.api import deployment
from levada.flow import DeploymentError
from levada.runners.ray import Ray
from levada.runners.ray.place import requirements, requirements_of


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
    with pytest.raises(DeploymentError, match=r"on='ray:2,learners=beside,learners=2': 'learners' is given twice"):
        deployment("ray:2,learners=beside,learners=2")
    with pytest.raises(DeploymentError, match=r"'workers' is given twice"):
        deployment("ray:2,workers=3")


def test_a_place_survives_its_text():
    """The text of a deployment is what a resumed run reads."""
    place = {"rollout": {"num_cpus": 2, "pool": "cheap, far=off"}, "learn": {"resources": {"disk": 1}}}
    chosen = Ray(workers=2, place=place, learners=2)
    assert deployment(str(chosen)) == chosen
    assert str(Ray(address="10.0.0.0", start_timeout_s=2)) == "ray,address=10.0.0.0,start_timeout_s=2"
    assert deployment('ray:2,place={"rollout":{"num_gpus":1}},threads=2').place == {"rollout": {"num_gpus": 1}}
    with pytest.raises(DeploymentError, match=r"the value of 'place' begins with a brace and is not JSON"):
        deployment("ray:2,place={rollout: 1}")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("rollout", r"Ray\(place='rollout'\): expected requirements by the name of a node"),
        ({"rollout": 2}, r"expected requirements by the name of a node"),
        ({"rollout": {"num_cpus": "2"}}, r"place\['rollout'\] = .*Expected `float`, got `str` - at `\$\.num_cpus`"),
        ({"rollout": {"num_cpus": -1}}, r"Expected `float` >= 0"),
        ({"rollout": {"num_cpus": float("nan")}}, r"Expected `float` >= 0"),
        ({"rollout": {"num_cpus": 0}}, r"reserves nothing; expected num_cpus > 0, or another resource"),
        ({"rollout": {"runtime_env": None}}, r"Expected `object`, got `null`"),
        ({"rollout": {"runtime_env": {"py_modules": [samples]}}}, r"not JSON serializable"),
        ({"rollout": {"resources": {"CPU": 2}}}, r"resources has 'CPU'; expected num_cpus=2"),
        ({"rollout": {"num_cpus": 1e-9}}, r"1e-09 of resource 'CPU'; expected at least 0.0001"),
        ({"rollout": {"resources": {"object_store_memory": 1}}}, r"1 of resource 'object_store_memory'; expected"),
        ({"rollout": {"resources": {"": 1}}}, r"1 of resource ''; expected"),
        ({"rollout": {"runtime_env": {"env_vars": None}}}, r"Expected `object`, got `null` - at `\$\.env_vars`"),
        ({"rollout": {"pool": 1}}, r"Expected `str`, got `int`"),
        ({"rollout": {"num_gpu": "1"}}, r"'num_gpu' would be a label; did you mean 'num_gpus'\?"),
        (
            {"rollout": {"scheduling_strategy": "SPREAD"}},
            r"'scheduling_strategy' is an option of actors .* levada decides it",
        ),
        ({"rollout": {"name": "a"}}, r"'name' is an option of actors that place does not take"),
        ({"rollout": {"lifetime": "detached"}}, r"'lifetime' .*; expected a label, or num_cpus, .*, runtime_env"),
        (
            {"learn": {"max_restarts": 3}},
            r"place\['learn'\]: 'max_restarts' .* it is an option of Ray\(\.\.\.\) itself",
        ),
        ({1: {"num_gpus": 1}}, r"expected requirements by the name of a node"),
    ],
)
def test_requirements_that_no_actor_can_have(place, words):
    with pytest.raises(DeploymentError, match=words):
        Ray(place=place)


@pytest.mark.parametrize(
    ("place", "expected"), [({}, False), ({"rollout": {}}, False), ({"learn": {}}, True), ({"learn": {"a": "b"}}, True)]
)
def test_a_learner_that_is_named_has_a_reservation(place, expected):
    assert requirements_of(samples.small_ppo(0), "learn", place)[1] is expected


def test_a_worker_and_the_learner_beside_it_share_a_node():
    place = {"rollout": {"pool": "a"}, "learn": {"pool": "b"}}
    flow = samples.small_ppo(0, microbatch_size=16)
    with pytest.raises(DeploymentError, match=r"beside it share a node; place gives them pool=a and pool=b"):
        Ray(workers=2, learners="beside", place=place).open(flow)


@pytest.mark.parametrize(
    ("wanted", "reserved", "expected"), [({}, 0.0, 4), ({}, 4.0, 2), ({"num_cpus": 2}, 0.0, 3), ({}, 9.0, 1)]
)
def test_workers_get_the_cpus_that_learners_leave(wanted, reserved, expected):
    """Of six CPUs, for four shards."""
    cluster = SimpleNamespace(num_cpus=6)
    assert Ray()._useful_workers(samples.small_ppo(0), cluster, requirements(wanted), reserved) == expected


def test_the_error_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("transport", "server"):
        monkeypatch.delitem(sys.modules, f"levada.runners.ray.{name}", raising=False)
    with pytest.raises(DeploymentError, match=r"pip install 'levada\[ray\]'"):
        Ray(workers=2).open(samples.small_ppo(0))
