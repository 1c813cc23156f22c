"""Files of a run are hostile until they are checked: sizes before memory, kinds before opening, no link followed."""

import json
import os
import resource
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.runs import hostile as hostile_runs
from support.runs.cli import TINY_FIELDS, Shell

import levada
from levada.flow import DeploymentError
from levada.memory import Memory
from levada.run.loggers import JsonLines
from levada.run.storage import checkpoint
from levada.run.storage.checkpoint import ARRAYS, META, list_checkpoints
from levada.run.storage.directory import RunDirectory, RunDirectoryError
from levada.run.storage.files import NotAFileError, read_whole, write_atomic
from levada.runners.inline import Inline
from levada.runners.processes import Processes
from levada.runners.threads import Threads

FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}
REPLAY = {
    "num_envs": 2, "hidden_sizes": (8,), "batch_size": 8, "buffer_size": 64, "learning_starts": 16, "compile": False,
    "display": "quiet", "log": "none", "save_replays": True,
}  # fmt: skip


pytestmark = pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with two checkpoints, one of another flow, one with replays."""
    root = tmp_path_factory.mktemp("made")
    levada.train(
        "ppo", "CartPole-v1", until="updates=4", checkpoint_every_updates=2, seed=3, out=root / "run", **FIELDS
    )
    fields = {**FIELDS, "shards": 2, "max_lag": 1}
    levada.train("ppo", "CartPole-v1", until="updates=6", seed=3, out=root / "other", **fields)
    levada.train("dqn", "CartPole-v1", until="updates=4", out=root / "replay", **REPLAY)
    return root


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


@pytest.fixture
def little_memory():
    """2 GB more than now: who takes memory for what a file says, fails, and the machine stays well."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


COMMANDS = [
    "eval run --episodes 1",
    "resume run --until updates=6 --quiet",
    "resume run --until updates=6 --quiet --trust",
]


def refused(done, *pieces):
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert done.err.count("\n") <= 6
    for piece in pieces:
        assert piece in done.err


# ---- what is no file


def as_link_to_zero(path):
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def as_pipe(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def as_directory(path):
    path.unlink(missing_ok=True)
    path.mkdir()


KINDS = {"is a symbolic link": as_link_to_zero, "is a named pipe": as_pipe, "is a directory": as_directory}


@pytest.mark.parametrize("said", KINDS)
@pytest.mark.parametrize("name", ["config.json", "summary.json", ARRAYS, META])
@pytest.mark.parametrize("command", COMMANDS[:2])
def test_only_regular_files_are_read(here, shell, little_memory, name, said, command):
    folders = [here / "run"] if "json" in name and name != META else list_checkpoints("run")
    for folder in folders:
        KINDS[said](folder / name)
    done = shell(command)
    if name == "summary.json":
        assert done.code == (2 if said == "is a directory" and "resume" in command else 0)  # nothing of it is needed
        return
    refused(done)
    if "--quiet" not in command:
        assert said in done.err


@pytest.mark.parametrize("said", ["is a symbolic link", "is a named pipe"])
def test_metrics_are_a_file(here, shell, said):
    KINDS[said](here / "run" / "metrics.jsonl")
    with pytest.raises(RunDirectoryError, match=said):
        RunDirectory.open("run").metrics()
    with pytest.raises(NotAFileError, match=said):
        JsonLines(here / "run" / "metrics.jsonl")
    refused(shell("resume run --until updates=6 --quiet"), said)


def test_checkpoints_are_no_link(here, shell):
    (here / "run" / "checkpoints").rename(here / "foreign")
    (here / "run" / "checkpoints").symlink_to(here / "foreign")
    refused(shell("eval run"), "checkpoints is a symbolic link, and none is followed")


def test_a_file_is_read_up_to_a_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert read_whole(path, 100) == bytes(100)
    with pytest.raises(NotAFileError, match="has 100 bytes, expected at most 99"):
        read_whole(path, 99)
    os.truncate(path, 1 << 40)  # a file with holes takes no room
    with pytest.raises(NotAFileError, match=r"has 1,099,511,627,776 bytes"):
        read_whole(path, 1 << 20)


def test_arrays_larger_than_the_memory_are_not_read(here, shell, little_memory):
    for path in list_checkpoints("run"):
        os.truncate(path / ARRAYS, 1 << 42)
    hostile_runs.edit_meta(here / "run", lambda record: record.update(arrays_bytes=1 << 42))
    refused(shell("eval run"), "arrays.safetensors has 4,398,046,511,104 bytes, and this machine a memory of")


# ---- what config.json, summary.json and meta.json say


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 100_000, "\xff\xfe", '"' + "\\ud800" * 3 + '"', "1" * 5000, ""]
)
def test_strange_json_is_torn(here, shell, text):
    data = text.encode("latin-1")
    for path in [here / "run" / "summary.json", *(p / META for p in list_checkpoints("run"))]:
        path.write_bytes(data)
    refused(shell("eval run"), "000000004", "000000002", "no valid checkpoint")
    (here / "run" / "config.json").write_bytes(data)
    refused(shell("eval run"), "config.json is")


def test_every_flipped_bit_of_meta_is_noticed(tmp_path):
    """Of meta.json itself, not of the arrays alone; one that changes nothing that it says (white space) is none."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"w": np.zeros(2, np.float32)}, {"learners": ["learn"], "rate": 0.5})
    path = tmp_path / "checkpoints" / "000000002" / META
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in (0, 5):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
            try:
                same = json.loads(path.read_bytes()) == json.loads(whole)
            except ValueError:
                same = False
            if same:
                continue
            with pytest.raises(checkpoint.CheckpointError, match="000000002"):
                checkpoint.load(path.parent)
    path.write_bytes(whole)
    assert checkpoint.load(path.parent).is_ours


def test_a_flipped_bit_of_a_learner_s_name_loses_nothing(here):
    path = list_checkpoints("run")[-1] / META
    path.write_bytes(path.read_bytes().replace(b'"learn"', b'"Learn"'))
    with pytest.warns(checkpoint.CheckpointWarning, match="skipped: checkpoint .*000000004 is torn"):
        run = levada.resume("run", until="updates=6", display="quiet")
    assert run.summary.updates == 6


def test_a_checkpoint_of_another_run_is_not_taken(here, shell):
    shutil.copytree(list_checkpoints("other")[-1], here / "run" / "checkpoints" / "000000006")
    with pytest.warns(checkpoint.CheckpointWarning, match="000000006 belongs to another flow"):
        assert levada.load("run").policy.version == 4
    with pytest.warns(checkpoint.CheckpointWarning, match="000000006 belongs to another flow"):
        run = levada.resume("run", until="updates=5", display="quiet")
    assert run.summary.lag["gae->batch"].max == 0


def test_a_checkpoint_under_another_number_is_not_taken(here):
    (here / "run" / "checkpoints" / "000000004").rename(here / "run" / "checkpoints" / "000000400")
    with pytest.warns(checkpoint.CheckpointWarning, match="is that of update 4"):
        assert levada.load("run").policy.version == 2


CHANGES = {
    "no learner": lambda flow: flow.update(learners=[]),
    "another learner": lambda flow: flow.update(learners=["learn", "Learn"]),
    "shards of another flow": lambda flow: flow.update(shards=[["rollout", 7]]),
    "tickets": lambda flow: flow["schedule"]["tickets"].update(rollout=10**30),
    "many tickets": lambda flow: flow["schedule"]["tickets"].update(rollout=10**17),
    "replays": lambda flow: flow.update(replays={"replay": 10**9}),
    "versions": lambda flow: flow["schedule"]["versions"].update(policy=-3),
    "no versions": lambda flow: flow["schedule"].update(versions={}),
    "no queues": lambda flow: flow["schedule"].update(queues={"x": 1}),
    "generations": lambda flow: flow.update(generations=[["rollout", 0, 10**40]]),
    "no schedule": lambda flow: flow.pop("schedule"),
    "registers": lambda flow: flow.update(registers={"weights": "all"}),
    "unsaved": lambda flow: flow.update(unsaved=[["rollout"]]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["", "--trust", "--fresh-episodes"])
def test_a_state_that_is_not_the_flow_s_is_left_for_an_older_one(here, shell, little_memory, monkeypatch, change, how):
    """Sealed by somebody else, and (as after a defect of levada) here: neither is begun with."""
    key = str(here) if how else os.environ["XDG_STATE_HOME"]
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", key)
        hostile_runs.edit_meta(here / "run", lambda record: CHANGES[change](record["meta"]["flow"]))
    done = shell(f"resume run --until updates=5 {how}")
    assert done.code == 0, done.err
    assert "warning: skipped: checkpoint run/checkpoints/000000004 is" in done.err
    assert levada.load("run").summary.updates == 5
    assert (here / "run" / "checkpoints" / "000000004.skipped").is_dir()


def zip_bomb(path, num_bytes):
    header = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % num_bytes
    header = header.ljust(127) + b"\n"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("replays/replay/0/index/keys.npy", "w") as file,
    ):
        file.write(header)
        for _ in range(num_bytes >> 20):
            file.write(bytes(1 << 20))


def test_an_archive_that_unpacks_to_more_than_there_is_room_for_is_not_unpacked(here, monkeypatch, little_memory):
    zip_bomb(here / "bomb.zip", 1 << 26)
    monkeypatch.setattr(checkpoint, "machine_memory", lambda: Memory(1 << 25, 1 << 24))
    hostile_runs.put_replays(here / "replay", (here / "bomb.zip").read_bytes(), {"replay": 1})
    with pytest.warns(checkpoint.CheckpointWarning, match="would unpack to 67,108,992 bytes, expected at most"):
        assert checkpoint.newest(here / "replay") is None


def test_nothing_of_a_foreign_archive_is_unpacked(here, shell, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "elsewhere"))
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **kwargs: pytest.fail("unpacked"))
    refused(shell("resume replay --until updates=6 --quiet"), "was not written by you")
    assert shell("resume replay --until updates=6 --quiet --fresh-episodes").code == 0


def test_contents_of_replays_that_are_not_those_of_the_table_are_refused(here, shell, monkeypatch, little_memory):
    zip_bomb(here / "bomb.zip", 1 << 26)
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "elsewhere"))
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(here / "attacker"))
        hostile_runs.put_replays(here / "replay", (here / "bomb.zip").read_bytes(), {"replay": 1})
    refused(shell("resume replay --until updates=6 --quiet --trust"), "none is whole")


def test_contents_of_replays_come_back(here):
    run = levada.resume("replay", until="updates=6", display="quiet")
    assert run.summary.updates == 6


@pytest.mark.parametrize("run", ["other", "replay"])
def test_older_versions_of_weights_that_are_no_numbers_are_not_played(here, shell, run):
    def change(arrays):
        old = [name for name in arrays if name.startswith("registers/") and name.endswith("weight")]
        assert old
        for name in old:
            arrays[name].flat[3] = np.nan

    hostile_runs.edit_arrays(here / run, change)
    done = shell(f"resume {run} --fresh-episodes --until updates=7")
    assert "has numbers that are not finite" in done.err
    assert "version" in done.err


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_neither_played_nor_trained(here, shell, value):
    def change(arrays):
        name = next(name for name in sorted(arrays) if name.startswith("learners/") and name.endswith("weight"))
        arrays[name].flat[3] = value

    hostile_runs.edit_arrays(here / "run", change)
    for command in COMMANDS:
        done = shell(command.replace("--quiet", ""))
        assert done.code == 0
        if command != COMMANDS[2]:
            assert "000000004" in done.err and "has numbers that are not finite" in done.err
    shutil.rmtree("run")
    shutil.copytree("replay", "run")
    hostile_runs.edit_arrays(here / "run", change)
    refused(shell("eval run"), "has numbers that are not finite", "no valid checkpoint")


SETTINGS = [
    ({"threads": 10**6}, "threads=1000000: expected at most"),
    ({"threads": "auto"}, "threads was saved as 'auto', expected int"),
    ({"threads": 0}, "threads=0: expected an integer >= 1"),
    ({"checkpoint_every_updates": -5}, "checkpoint_every_updates=-5: expected an integer >= 1"),
    ({"checkpoint_every_updates": "often"}, "checkpoint_every_updates='often': expected an integer >= 1"),
    ({"save_replays": "yes"}, "save_replays was saved as 'yes', expected bool"),
    ({"on": 5}, "on was saved as 5, expected str"),
    (
        {"on": "processes:2,hang_timeout_s=inf"},
        "Processes(hang_timeout_s=inf): expected a number > 0 and <= 1000000, or None",
    ),
    ({"on": "processes:2,hang_timeout_s=1e12"}, "Processes(hang_timeout_s=1000000000000.0): expected a number"),
    ({"on": "processes:2,hang_timeout_s=abc"}, "Processes(hang_timeout_s='abc'): expected a number"),
    ({"on": "processes:2,threads=1000000"}, "Processes: threads=1000000: expected at most"),
    ({"on": "inline,threads=1000000"}, "Inline: threads=1000000: expected at most"),
    ({"on": "processes:1000000"}, "Processes: workers is 1000000, expected at most"),
    ({"on": "threads:1000000"}, "Threads: workers is 1000000, expected at most 1024"),
    ({"until": "updates=-1"}, "updates"),
    ({"env_kwargs": ["steps=1"]}, "env_kwargs was saved as ['steps=1'], expected a mapping"),
]


@pytest.mark.parametrize(("changed", "said"), SETTINGS, ids=[str(change) for change, _ in SETTINGS])
def test_settings_of_a_run_are_checked_as_if_they_were_given_now(here, shell, changed, said):
    hostile_runs.edit_config(here / "run", lambda values: values.update(changed))
    path = here / "run" / "config.json"
    config = json.loads(path.read_bytes())
    if isinstance(changed.get("on"), str):  # where it ran is where it goes on
        config["identity"]["deployment"] = changed["on"]
        path.write_text(json.dumps(config))
    refused(shell("resume run --quiet"), said)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e12, "abc", True, 0, -1.0])
def test_a_time_that_cannot_be_waited_is_refused(value):
    with pytest.raises(DeploymentError, match=r"hang_timeout_s=.*: expected a number > 0 and <= 1000000"):
        Processes(workers=1, hang_timeout_s=value)


@pytest.mark.parametrize(
    "make", [lambda: Processes(threads=10**6), lambda: Inline(threads=10**6), lambda: Processes(workers=10**6),
             lambda: Threads(workers=10**6)],
)  # fmt: skip
def test_more_threads_and_workers_than_a_machine_has_room_for_are_refused(make):
    with pytest.raises(DeploymentError, match="expected at most"):
        make()


# ---- what is written


def test_the_traceback_goes_into_the_run_and_nowhere_else(here):
    mine = here / "mine.txt"
    mine.write_text("mine")
    directory = RunDirectory.open("run")
    directory.error_path.symlink_to(mine)
    directory.write_error(ValueError("broken \ud800"))
    assert mine.read_text() == "mine"
    assert not directory.error_path.is_symlink()
    assert "ValueError: broken" in directory.error_path.read_text()


def test_a_link_is_replaced_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    write_atomic(tmp_path / "link", b"new")
    assert ((tmp_path / "mine").read_text(), (tmp_path / "link").read_text()) == ("mine", "new")


@pytest.mark.parametrize("stray", [".x.tmp", ".000000002.1-ab.tmp", ".nfs0001", "000000001"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling", "folder"])
def test_what_others_leave_among_checkpoints_stays_and_disturbs_nothing(tmp_path, stray, kind):
    arrays = {"w": np.zeros(2)}
    checkpoint.save(tmp_path, 2, arrays, {})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    path = tmp_path / "checkpoints" / stray
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "mine").write_text("mine")
    else:
        path.symlink_to(outside if kind == "link" else "nowhere")
    for step in (3, 4, 5):
        checkpoint.save(tmp_path, step, arrays, {})
        checkpoint.keep_last(tmp_path, 1)
    assert (outside / "mine").read_text() == "mine"
    assert os.path.lexists(path)
    if kind == "folder":
        assert (path / "mine").read_text() == "mine"
    assert checkpoint.newest(tmp_path).step == 5
    assert not (tmp_path / "checkpoints" / "000000002").exists()


@pytest.mark.parametrize("name", ["2026", "7", "\u0660" * 9, "0000000001"])
def test_folders_with_other_numbers_are_no_checkpoints(tmp_path, name):
    checkpoint.save(tmp_path, 2, {}, {})
    (tmp_path / "checkpoints" / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000000002"]
    checkpoint.keep_last(tmp_path, 1)
    assert (tmp_path / "checkpoints" / name).is_dir()


def test_what_stands_where_a_checkpoint_is_to_be_written_is_said(tmp_path):
    checkpoint.save(tmp_path, 1, {}, {})
    (tmp_path / "checkpoints" / "000000002").symlink_to("000000001")
    with pytest.raises(checkpoint.CheckpointError, match="is no checkpoint, and is where one is to be written"):
        checkpoint.save(tmp_path, 2, {}, {})
    assert checkpoint.load(tmp_path / "checkpoints" / "000000001").step == 1


def test_checkpoints_are_not_written_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "checkpoints").symlink_to("outside")
    with pytest.raises(checkpoint.CheckpointError, match="or a link to one, which is not followed"):
        checkpoint.save(tmp_path, 1, {}, {})
    checkpoint.keep_last(tmp_path, 1)
    assert list((tmp_path / "outside").iterdir()) == []


def test_metrics_that_were_cut_off_are_ended_at_the_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for text, kept in ((b'{"step":1}\n{"st', b'{"step":1}\n'), (b"x" * 200_000, b""), (b"", b""), (b"a\n", b"a\n")):
        path.write_bytes(text)
        JsonLines(path).close(None)
        assert path.read_bytes() == kept
    path.write_bytes(b'{"step":1}\n' + b"x" * 200_000)
    JsonLines(path).close(None)
    assert path.read_bytes() == b'{"step":1}\n'


# ---- what is shown

STEERS = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e"


@pytest.mark.parametrize("field", ["algorithm", "env", "deployment", "precision"])
@pytest.mark.parametrize("command", ["eval run --episodes 1", "resume run --until updates=6"])
def test_names_that_steer_a_terminal_are_shown_as_text(here, shell, field, command):
    for name in ("config.json", "summary.json"):
        path = here / "run" / name
        known = json.loads(path.read_bytes())
        (known["identity"] if name == "config.json" else known)[field] += STEERS
        path.write_text(json.dumps(known))
    done = shell(command)
    assert done.code == (2 if field == "deployment" and command.startswith("resume") else 0), done.err
    assert harmless(done.out + done.err)
    assert "\\x1b[31m" in done.out + done.err or field in ("precision", "deployment")


@pytest.mark.parametrize("change", [
    lambda values: values.update(env="CartPole-v1" + STEERS),
    lambda values: values.update({"learning_rate": STEERS}),
    lambda values: values.update({"until": STEERS}),
    lambda values: values.update({"on": STEERS}),
    lambda values: values.update({"network": STEERS + ":X"}),
])  # fmt: skip
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_that_steers_a_terminal_is_shown(here, shell, change, command):
    hostile_runs.edit_config(here / "run", change)
    done = shell(command)
    assert done.code in (0, 1, 2)
    assert harmless(done.out + done.err)


def test_reasons_from_a_checkpoint_are_shown_as_text(here, shell):
    def change(record):
        flow = record["meta"]["flow"]
        flow.update(shards=[], unsaved=[["rollout", 0, STEERS]], is_exact=False)

    hostile_runs.edit_meta(here / "run", change)
    with pytest.warns(checkpoint.CheckpointWarning, match="episodes start over in rollout 0") as caught:
        levada.resume("run", until="updates=5", display="quiet")
    assert all(harmless(str(warning.message)) for warning in caught)


def harmless(text):
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_summary_and_metrics_cannot_be_links_to_what_is_overwritten(here):
    mine = here / "mine.txt"
    for name in ("summary.json", "metrics.jsonl", "error.txt"):
        mine.write_text("mine")
        path = here / "run" / name
        path.unlink(missing_ok=True)
        path.symlink_to(mine)
        if name == "metrics.jsonl":
            with pytest.raises(RunDirectoryError, match="symbolic link"):
                levada.resume("run", until="updates=5", display="quiet")
        else:
            levada.resume("run", until="updates=5", display="quiet")
        assert mine.read_text() == "mine"
        path.unlink(missing_ok=True)
