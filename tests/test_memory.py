"""The estimate of memory before a run starts: told, refused, and right about what it says."""

import pytest

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.diloco import DiLoCo
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.self_play import Keeping, Past, SelfPlay
from levada.api.memory import (
    check_memory,
    check_object_store,
    estimate,
    estimate_object_store,
)
from levada.api.options import configure, deployment
from levada.api.run import build
from levada.flow import Flow
from levada.memory import Memory, machine_memory, nbytes_text
from levada.rl.acting.sizes import Sizes
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.policies.size import SizeError

GIB = 1 << 30
PLAYERS = ("player_0", "player_1")


def one_seat(agent, episode):
    return "new" if agent == PLAYERS[episode.number % 2] else "old"


def needs(algorithm: str, task: lv.Task | str, on: str = "inline", **fields) -> dict[str, int]:
    config, _ = configure(algorithm, task, fields)
    return estimate(build(config, task if isinstance(task, lv.Task) else lv.Task(task)), deployment(on))


@pytest.mark.parametrize(
    ("algorithm", "fields", "what"),
    [
        ("ppo", {"num_envs": 100_000_000}, "1 item of 'rollout'.* Lower num_envs.* or shards$"),
        ("dqn", {"buffer_size": 100_000_000_000}, "100,000,000,000 entries of 'replay'.* Lower buffer_size$"),
        ("dqn", {"buffer_size": 10**9}, "1,000,000,000 entries of 'replay'"),
        ("r2d2", {"buffer_size": 10**9}, "1,000,000,000 entries of 'replay'"),
        (
            "sac",
            {"batch_size": 10**10},
            "80,000,000,000 rows that 'sample' draws.* Lower batch_size or num_gradient_steps$",
        ),
        ("dqn", {"num_gradient_steps": 10**9}, "64,000,000,000 rows that 'sample' draws"),
        ("r2d2", {"batch_size": 10**9}, "4,000,000,000 rows that 'sample' draws"),
        ("ppo", {"hidden_sizes": (20_000, 20_000, 20_000, 20_000)}, "the network of 'learn'"),
    ],
)
def test_sizes_that_eat_the_machine_are_refused_before_a_directory_is_made(
    algorithm, fields, what, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"the run would need about .* of memory, and this machine has .*{what}"):
        lv.train(algorithm, "CartPole-v1", until="updates=1", display="quiet", **fields)
    assert not list(tmp_path.iterdir())


def test_what_fits_is_told_only_where_it_is_a_large_part_of_what_is_free():
    assert check_memory({"a replay": 1 * GIB}, Memory(8 * GIB, 4 * GIB)) is None
    said = check_memory({"small": 1 << 20, "a replay": 3 * GIB}, Memory(8 * GIB, 4 * GIB))
    assert (
        said
        == "memory: the run will need about 3.0 GiB of the 4.0 GiB that are free: 3.0 GiB for a replay, 1.0 MiB for small"
    )
    with pytest.raises(
        ConfigError, match=r"about 9.0 GiB of memory, and this machine has 8.0 GiB: 9.0 GiB for a replay"
    ):
        check_memory({"a replay": 9 * GIB}, Memory(8 * GIB, 4 * GIB))


REPLAYED = {"num_steps": 8, "learning_starts": 64, "batch_size": 16, "compile": False}
MEETING = lv.Task("pettingzoo:mpe2.simple_spread_v3")


@pytest.mark.parametrize(
    ("algorithm", "task", "fields"),
    [
        ("sac", lv.Task("Pendulum-v1"), {}),
        ("dqn", lv.Task("CartPole-v1"), {"prioritized": True}),
        ("r2d2", lv.Task("CartPole-v1"), {"sequence_length": 8, "burn_in": 4, "learning_starts": 8, "rnn_size": 4}),
        ("vdn", MEETING, {}),
        ("qmix", MEETING, {"prioritized": True}),
        ("maddpg", MEETING, {}),
        ("maddpg", lv.Task(MEETING.env, env_kwargs={"continuous_actions": True}), {}),
        ("nfsp", lv.Task("openspiel:leduc_poker"), {"num_envs": 8, "reservoir_size": 500}),
        ("alphazero", lv.Task("openspiel:tic_tac_toe"), {"num_envs": 16, "num_simulations": 4}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_entries_take_what_is_estimated(algorithm, task, fields):
    """What the tables of a short run hold, against the estimate: within a fifth."""
    config, _ = configure(algorithm, task, {**REPLAYED, "buffer_size": 1_000, **fields})
    flow = build(config, task)
    needs = estimate(flow, deployment("inline"))
    with lv.Inline().open(flow, seed=1) as run:
        next(report for report in run if report.node.startswith(("learn", "average", "policy")))
        tables = run.save(replays=True).replays
    assert tables.keys() == flow.replays.keys()
    for name, replay in flow.replays.items():
        [table] = tables[name]
        columns = [array for key, array in table.items() if key.startswith("rows/") and "nesting" not in key]
        held = sum(array.nbytes / len(array) for array in (*columns, table["index/keys"]))
        held += 2 * table["index/priorities"].itemsize if "index/priorities" in table else 0  # a tree of sums
        assert needs[f"{replay.capacity:,} entries of {name!r}"] / replay.capacity == pytest.approx(held, rel=0.2)


def test_past_versions_count():
    task = MultiAgentTask("openspiel:kuhn_poker", policies={"new": PLAYERS, "old": PLAYERS}, policy_of=one_seat)
    hp = lv.PPO(num_envs=4, num_steps=8, minibatch_size=16, hidden_sizes=(8,), compile=False)
    found = estimate(multi_agent(task, {"new": SelfPlay(hp, Keeping(size=100)), "old": Past("new")}), lv.Inline())
    assert found["100 past versions of 'new/learn'"] == 100 * 2 * 4 * found["the network of 'new/learn'"] / 32


def test_frames_count_once():
    pixels = lv.Task("ALE/Pong-v5")
    assert Sizes.stored(pixels).observation == 84 * 84
    assert Sizes.drawn(pixels).observation == 4 * 84 * 84


def test_many_environments_are_measured_by_a_trial():
    found = needs("ppo", "CartPole-v1", num_envs=1_000)
    assert 0 <= found["1,000 environments"] < GIB
    assert "8 environments" not in needs("ppo", "CartPole-v1")


def test_a_layer_that_no_machine_has_room_for_is_refused_before_a_directory_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SizeError, match="a layer of 1,000,000 x 1,000,000 weights"):
        lv.train("ppo", "CartPole-v1", until="updates=1", display="quiet", hidden_sizes=(1_000_000, 1_000_000))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algorithm", "fields", "weights"),
    [
        ("ppo", {"rnn_type": "lstm", "rnn_size": 200_000}, "160,052,000,000"),  # 4 gates x 200,000 x (64 + 200,000 + 1)
        ("ppo", {"rnn_type": "gru", "rnn_size": 200_000}, "120,039,000,000"),
        ("r2d2", {"rnn_size": 200_000}, "160,052,000,000"),
    ],
)
def test_a_memory_that_no_machine_has_room_for_is_refused_at_once(algorithm, fields, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SizeError, match=f"a recurrent layer of rnn_size=200,000 has {weights} weights, which take about"
    ):
        lv.train(algorithm, "CartPole-v1", until="updates=1", display="quiet", **fields)
    assert not list(tmp_path.iterdir())


def test_what_is_drawn_has_all_of_its_frames():
    drawn = needs("dqn", "ALE/Pong-v5", batch_size=32, num_gradient_steps=1)["32 rows that 'sample' draws"]
    assert 32 * 8 * 84 * 84 < drawn < 1.01 * 32 * 8 * 84 * 84


def test_a_network_that_remembers_counts():
    found = needs("ppo", "CartPole-v1", rnn_type="gru", hidden_sizes=(16,), rnn_size=8)["the network of 'learn'"]
    assert found == 32 * ((4 * 16 + 16) + 3 * 8 * (16 + 8 + 1) + 3 * (8 + 1))


def test_the_network_counts():
    assert needs("ppo", "CartPole-v1", hidden_sizes=(64, 64))["the network of 'learn'"] == 32 * (
        2 * (4 * 64 + 64 + 64 * 64 + 64) + 3 * 65
    )


def test_workers_count():
    assert needs("ppo", "CartPole-v1", "processes:2", shards=2)["2 worker processes"] > 0


def test_the_machine_has_memory():
    has = machine_memory()
    assert 0 < has.free_nbytes <= has.total_nbytes < 1 << 50


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 bytes"), (1536, "1.5 KiB"), (10 * GIB, "10.0 GiB")])
def test_bytes_in_words(nbytes, text):
    assert nbytes_text(nbytes) == text


def test_the_object_store_of_a_cluster_is_bounded_by_tickets_and_versions():
    config, _ = configure(
        "ppo", "CartPole-v1", {"shards": 4, "num_envs": 2, "num_steps": 16, "minibatch_size": 32, "max_lag": 1}
    )
    needs = estimate_object_store(build(config, lv.Task("CartPole-v1")))
    assert list(needs) == ["8 items of 'rollout'", "2 versions of 'weights'"]
    assert needs["8 items of 'rollout'"] == 8 * 2 * 17 * (4 * 4 + 8 + 20)
    assert check_object_store(needs, GIB).startswith("object store: at most about ")
    with pytest.raises(
        ConfigError,
        match=r"object stores, which hold 1.0 KiB: .* Lower hidden_sizes",
    ):
        check_object_store(needs, 1024)


def test_what_is_in_the_object_store_does_not_depend_on_names(monkeypatch):
    """The tables of a replay are not there, whatever it is called."""
    replay = Flow.replay
    monkeypatch.setattr(Flow, "replay", lambda flow, name, **options: replay(flow, "items", **options))
    config, _ = configure("dqn", "CartPole-v1", {"buffer_size": 10_000, "batch_size": 16, "num_gradient_steps": 2})
    needs = estimate_object_store(build(config, lv.Task("CartPole-v1")))
    assert [what.partition(" ")[2] for what in needs] == [
        "items of 'step'",
        "rows that 'sample' draws",
        "versions of 'weights'",
    ]


@pytest.mark.parametrize(("compression", "nbytes"), [(None, 4 * 201_989), ("top_k", 8 * 10_099)])
def test_the_object_store_holds_differences_of_groups(compression, nbytes):
    """Of the parameters of all networks: an actor and two critics. What a group itself holds stays in its process."""
    config = DiLoCo(of="sac", num_groups=8, max_lag=1, compression=compression)
    needs = estimate_object_store(config.flow(lv.Task("Pendulum-v1")))
    assert needs == {"16 differences of 'group'": 16 * nbytes, "2 versions of 'weights'": 2 * 4 * 201_989}
    assert "without copies on other nodes: " in check_object_store(needs, GIB)
    with pytest.raises(ConfigError, match=r"for 16 differences of 'group'.* Lower num_groups, max_lag or hidden_sizes"):
        check_object_store(needs | {"2 versions of 'weights'": 1}, 1024)
