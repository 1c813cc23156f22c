"""`import levada` is quick because it imports little; what is public is exactly what is meant."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from importlib import resources

import pytest

import levada
import levada.errors
import levada.math
import levada.rl
import levada.testing

PUBLIC = {
    "Algorithm", "Flow", "FlowError", "Inline", "Instrument", "Learner", "LevadaError", "Logger", "MultiAgentTask", "PPO", "Part",
    "Policy", "PolicyAlgorithm", "Prioritized", "multi_agent",
    "Processes", "Queue", "Ray",
    "Report", "Result", "Rollout", "Sampler", "Shard", "Task", "Transitions", "Update", "__version__", "compare", "cross_play",
    "evaluate", "export", "Threads", "evaluate_policies", "load", "push", "resume", "settings", "train",
}  # fmt: skip
HEAVY = (
    "torch",
    "gymnasium",
    "numpy",
    "tyro",
    "rich",
    "tensorboard",
    "msgspec",
    "safetensors",
    "huggingface_hub",
    "levada.api",
)


def loaded_by(statement: str) -> set[str]:
    """Modules in a fresh process after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_import_loads_nothing_heavy():
    """`benchmarks/import_time.py` measures the time; here only what it is spent on, which does not flicker."""
    loaded = loaded_by("import levada")
    assert not loaded & set(HEAVY)
    assert {name for name in loaded if name.startswith("levada")} == {
        "levada", "levada._lazy", "levada._version", "levada.portable",
    }  # fmt: skip


def test_the_flow_needs_no_torch_and_no_gymnasium():
    loaded = loaded_by("from levada import Flow, Queue, Inline, Instrument, Update, Shard, Report")
    assert not loaded & {"torch", "gymnasium"}


@pytest.mark.parametrize("command", ["--version", "--help", "algorithms"])
def test_help_of_the_command_line_loads_no_torch(command):
    head = "import io, levada.cli; from contextlib import redirect_stdout as to"
    assert not loaded_by(f"{head}\nwith to(io.StringIO()): levada.cli.main([{command!r}])") & {
        "torch",
        "gymnasium",
        "tyro",
    }


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_a_run_with_defaults_does_not_load_the_compiler_of_torch(algorithm, tmp_path):
    """It takes a second and 70 MiB; any optimizer of torch loads it when it is made."""
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    train = f"lv.train({algorithm!r}, {env!r}, until='updates=1', out={str(tmp_path / 'run')!r}, display='quiet')"
    assert "torch._dynamo" not in loaded_by(f"import levada as lv\n{train}")


def test_exactly_what_is_meant_is_public():
    assert set(levada.__all__) == PUBLIC
    assert len(levada.__all__) == len(PUBLIC)
    assert set(dir(levada)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name):
    value = getattr(levada, name)
    assert value is getattr(levada, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__.startswith("levada.")


def test_a_star_import_gives_the_public_names():
    names = {}
    exec("from levada import *", names)
    assert names.keys() - {"__builtins__"} == PUBLIC


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'levada' has no attribute 'trian'"):
        levada.trian  # noqa: B018
    with pytest.raises(ImportError):
        exec("from levada import trian")


def test_the_package_is_typed():
    assert resources.files("levada").joinpath("py.typed").is_file()


LAZY = (levada, levada.errors, levada.math, levada.rl, levada.testing)


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_what_type_checkers_see_is_what_there_is(package):
    """The imports under TYPE_CHECKING name the same homes as the table that is used at run time."""
    guarded = next(node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If))
    imports = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert imports == package._HOME
    assert set(dir(package)) == set(package.__all__)
    assert set(package.__all__) - {"__version__"} == set(imports)


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_no_public_name_is_hidden_by_a_module(package):
    """`import package.name` would replace the one by the other."""
    modules = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))}
    assert not modules & set(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_tools_for_tests_need_no_torch_and_no_tools_of_ours():
    loaded = loaded_by("from levada.testing import Executor, Recorder, ToyLearner, check_orders, toy_flow, toy_source")
    assert not loaded & {"torch", "gymnasium", "pytest", "hypothesis"}


def test_spaces_need_no_torch():
    assert "torch" not in loaded_by("import levada.rl; from levada.rl import SpaceError")


def test_an_algorithm_that_is_not_at_the_top_is_said_to_be_elsewhere():
    with pytest.raises(AttributeError, match=r"has no attribute 'DQN': it is in levada\.algorithms\.dqn$"):
        _ = levada.DQN
    with pytest.raises(AttributeError, match=r"has no attribute 'trian'$"):
        _ = levada.trian
