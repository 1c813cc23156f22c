"""Algorithms are found by name, by module, and in a user's file."""

import random
import sys
from dataclasses import dataclass

import pytest

from levada import PPO, Algorithm
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.registry import (
    AlgorithmError,
    algorithm_home,
    algorithm_name,
    describe,
    find_algorithm,
)

FILE = '''"""Mine: as PPO, but mine."""
from dataclasses import dataclass
from levada import PPO

@dataclass(frozen=True, kw_only=True)
class Mine(PPO):
    """A configuration."""
    extra: int = 3
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "registry_sample.py"
    path.write_text(FILE)
    yield path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_is_a_class_with_defaults_and_a_description(name):
    cls = find_algorithm(name)
    assert issubclass(cls, Algorithm)
    assert isinstance(cls(), cls)
    assert algorithm_name(cls) == name
    assert describe(cls)


def test_a_module(monkeypatch, file):
    monkeypatch.syspath_prepend(file.parent)
    cls = find_algorithm("registry_sample:Mine")
    assert (cls.__name__, cls().extra) == ("Mine", 3)
    assert algorithm_name(cls) == "Mine"
    assert algorithm_home(cls) == "registry_sample:Mine"
    assert find_algorithm("levada.algorithms.ppo:PPO") is PPO


def test_a_file_and_its_home_leads_back_to_it(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cls = find_algorithm("registry_sample.py:Mine")
    assert describe(cls) == "Mine: as PPO, but mine."
    assert algorithm_home(cls) == f"{file}:Mine"
    monkeypatch.chdir("/")
    assert find_algorithm(algorithm_home(cls))().extra == 3


def test_a_file_is_read_anew_each_time(file):
    first = find_algorithm(f"{file}:Mine")
    file.write_text(FILE.replace("extra: int = 3", "extra: int = 4000"))
    assert (first().extra, find_algorithm(f"{file}:Mine")().extra) == (3, 4000)


def test_a_file_does_not_take_the_place_of_a_library(file):
    path = file.with_name("random.py")
    path.write_text(FILE)
    cls = find_algorithm(f"{path}:Mine")
    assert sys.modules["random"] is random
    assert cls.__module__.startswith("random_")
    assert sys.modules[cls.__module__].Mine is cls
    assert algorithm_home(cls) == f"{path}:Mine"


def test_what_a_file_raises_is_its_own_error_and_leaves_no_module(file):
    file.write_text("import a_package_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        find_algorithm(f"{file}:Mine")
    assert "registry_sample" not in sys.modules


def test_what_a_module_lacks_is_its_own_error(file, monkeypatch):
    file.write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(file.parent)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        find_algorithm("registry_sample:Mine")


class Outer:
    @dataclass(frozen=True, kw_only=True)
    class Nested(PPO):
        pass


def test_a_class_within_a_class():
    assert find_algorithm(algorithm_home(Outer.Nested)) is Outer.Nested


def test_a_class_that_is_defined_in_place():
    @dataclass(frozen=True, kw_only=True)
    class Here(PPO):
        """Documented."""

    assert algorithm_name(Here).endswith("Here")
    assert describe(Here) == __doc__


ALL = (
    "a2c, a3c, alphazero, apex_ddpg, apex_dqn, appo, ddpg, diloco, dqn, impala, ippo, maddpg, mappo, multi, nfsp, pg, ppo, qmix, "
    "r2d2, rainbow, recurrent_sac, sac, td3, vdn"
)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "pop",
            f"no algorithm 'pop'; did you mean 'ppo'? There are: {ALL}",
        ),
        (
            "dreamer",
            f"no algorithm 'dreamer'. There are: {ALL}; a custom one",
        ),
        ("levada.algorithms.ppo:PPPO", "levada.algorithms.ppo has no algorithm 'PPPO'; did you mean 'PPO'?"),
        ("levada.algorithms.ppo:X", "levada.algorithms.ppo has no algorithm 'X'; it has: PPO"),
        ("levada.algorithms.ppo:PPOLoss", "PPOLoss is no algorithm; derive it from levada.Algorithm"),
        ("levada:Algorithm", "Algorithm is no algorithm"),
        ("levada.nothing:PPO", "no module 'levada.nothing'"),
        ("..:PPO", "'..' is no module"),
        ("nothing.py:PPO", "no file 'nothing.py'"),
    ],
)
def test_what_is_not_there(name, message):
    with pytest.raises(AlgorithmError) as caught:
        find_algorithm(name)
    assert message in str(caught.value)
