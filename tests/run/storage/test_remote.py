"""A run at a URL survives the machine that it ran on, wherever that stopped."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
from support.runs.cli import TINY, TINY_FIELDS, begin, in_process
from support.runs.stores import Watched, failing, recording

import levada
from levada.errors import CheckpointWarning, LoadError, RunDirectoryError, UploadError
from levada.flow.events import Reported
from levada.run.interrupt import Interrupt
from levada.run.storage import remote
from levada.run.storage import store as store_module
from levada.run.storage.checkpoint import ARRAYS, META, REPLAYS_ZIP, list_checkpoints
from levada.run.storage.directory import RunDirectory
from levada.run.storage.remote import RemoteRunDirectory
from levada.run.storage.store import Store

URL = "watched://runs/a"
FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}
COMMAND = f"train ppo --env CartPole-v1 {TINY} --seed 3 --quiet"


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    Watched.reset()
    fsspec.filesystem("memory").store.clear()
    monkeypatch.setattr(remote, "RETRY_S", ())
    (tmp_path / "copies").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))  # for other processes
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))


@pytest.fixture
def in_step(monkeypatch):
    """Wait for each upload, so that what is uploaded does not depend on timing."""
    publish = RemoteRunDirectory.publish

    def publish_and_wait(self):
        publish(self)
        assert self._uploads.wait(60)

    monkeypatch.setattr(RemoteRunDirectory, "publish", publish_and_wait)


def train(until="updates=6", out=URL, **rest):
    fields = {"seed": 3, "checkpoint_every_updates": 2, **FIELDS, **rest}
    return levada.train("ppo", "CartPole-v1", until=until, out=out, **fields)


def resume(until="updates=6", url=URL, **rest):
    return levada.resume(url, until=until, display="quiet", **rest)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The run at a path that nobody disturbed."""
    run = train(out=tmp_path_factory.mktemp("whole") / "run")
    return run.summary.params_sha256, learned(RunDirectory.open(run.path).metrics())


def learned(lines):
    """Metrics that do not depend on timing."""
    return [{key: value for key, value in line.items() if key.startswith(("step", "losses"))} for line in lines]


def same(run, expected, url=URL):
    sha256, lines = expected
    assert run.summary.params_sha256 == sha256
    assert learned(RunDirectory.open(url).metrics()) == lines
    assert levada.load(url).summary == run.summary


def copies():
    """Local copies that exist."""
    gc.collect()
    return sorted(Path(os.environ["TMPDIR"]).iterdir())


def steps(url=URL):
    return RunDirectory.open(url).steps()


class At:
    """Does something after an update."""

    def __init__(self, update, what):
        self.update = update
        self.what = what

    def on_event(self, event):
        if isinstance(event, Reported) and event.report.firing == self.update:
            self.what()


# ---- whole runs


@pytest.mark.parametrize("protocol", ["memory", "watched", "file"])
def test_a_run_goes_on_at_its_url(protocol, expected, tmp_path):
    url = f"{protocol}://{tmp_path if protocol == 'file' else 'bucket'}/a run/[1]*"
    run = train("updates=3", url)
    assert str(run).endswith(f"\n{url}")
    del run
    assert copies() == []
    assert steps(url) == (2, 3)
    same(resume(url=url), expected, url)
    assert steps(url) == (3, 4, 6)


def test_it_goes_on_in_another_process_with_the_files_alone(expected, tmp_path):
    url = f"file://{tmp_path}/runs/a"
    assert in_process(f"{COMMAND} --until updates=3 --log none --out {url}", cwd=tmp_path).code == 0
    done = in_process(f"resume {url} --until updates=6 --quiet", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert levada.load(url).summary.params_sha256 == expected[0]
    assert copies() == []
    plain = levada.load(tmp_path / "runs/a")  # the same files as those of a run at a path
    assert plain.summary.params_sha256 == expected[0]


def test_a_killed_process_leaves_what_another_goes_on_from(expected, tmp_path):
    url = f"file://{tmp_path}/run"
    command = f"{COMMAND} --until updates=100_000 --checkpoint-every-updates 1 --out {url}"
    main = begin(command, cwd=tmp_path)
    deadline_s = time.monotonic() + 300.0
    while len(list_checkpoints(tmp_path / "run")) < 3:
        assert main.poll() is None, main.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    main.send_signal(signal.SIGKILL)
    main.communicate()
    goal = max(steps(url)[-1], 6)
    run = resume(f"updates={goal}", url)
    whole = train(f"updates={goal}", tmp_path / "whole")
    assert run.summary.params_sha256 == whole.summary.params_sha256


def test_contents_of_replays_come_along(tmp_path):
    fields = {
        "num_envs": 2, "hidden_sizes": (8,), "batch_size": 8, "buffer_size": 64, "learning_starts": 16, "compile": False,
        "display": "quiet", "save_replays": True,
    }  # fmt: skip
    whole = levada.train("dqn", "CartPole-v1", until="updates=30", out=tmp_path / "whole", **fields)
    levada.train("dqn", "CartPole-v1", until="updates=20", out=URL, **fields)
    assert f"{URL}/checkpoints/000000020/{REPLAYS_ZIP}" in Watched.files()
    Watched.watch(failing("cat", below=REPLAYS_ZIP))
    assert levada.load(URL).policy.version == 20  # acting needs no replay
    Watched.watch()
    assert resume("updates=30").summary.params_sha256 == whole.summary.params_sha256


def test_other_functions_take_urls():
    run = train("updates=3")
    assert len(levada.evaluate(URL, num_episodes=2).returns) == 2
    for path in (URL, f"{URL}/config.json"):
        assert levada.settings(path)["seed"] == 3
    again = levada.train(**levada.settings(URL), display="quiet", out="memory://runs/b")
    assert again.summary.params_sha256 == run.summary.params_sha256
    train("updates=1", "memory://runs/c", init_from=URL)
    assert levada.load(URL, checkpoint=2).policy.version == 2
    with pytest.raises(LoadError, match=r"watched://runs/a has no checkpoint=1, .*: 2, 3; or 'best'$"):
        levada.load(URL, checkpoint=1)


def test_the_local_copy_exists_as_long_as_the_result():
    run = train("updates=2")
    path = run.path
    assert copies() == [path]
    assert (path.stat().st_mode & 0o777, len(RunDirectory.open(path).metrics())) == (0o700, 2)
    del run
    assert copies() == []
    assert levada.load(path).summary.updates == 2  # the path stands for the URL
    assert resume("updates=3", path).summary.updates == 3
    assert steps() == (2, 3)


# ---- processes that die


@pytest.fixture
def states(in_step, monkeypatch):
    """What a process leaves at the URL that dies at any step of any upload."""
    monkeypatch.setattr(store_module, "_CHUNK", 2048)
    with recording() as states:
        train()
    assert len(states) > 20
    return states


def check_readable(num_updates_before):
    """Every checkpoint that there is, is whole, and the metrics lead to it."""
    found = RunDirectory.open(URL)
    for step in found.steps():
        assert levada.load(URL, checkpoint=step).policy.version == step
    updates = [line["charts/updates"] for line in found.metrics()]
    newest = max(found.steps(), default=0)
    assert updates[:newest] == list(range(1, newest + 1))
    assert newest >= num_updates_before
    return newest


@pytest.mark.filterwarnings("ignore:.*has no checkpoint:levada.errors.CheckpointWarning")
def test_a_process_may_die_at_every_step_of_an_upload(states, expected):
    newest, states_with_a_run = 0, [state for state in states if f"{URL}/config.json" in state]
    assert len(states_with_a_run) > 15
    for state in states_with_a_run:
        Watched.reset(state)
        newest = check_readable(newest)
        same(resume(), expected)
    assert newest == 6
    Watched.reset(states[1])
    with pytest.raises(RunDirectoryError, match=r"there is no run at watched://runs/a: it has no config.json"):
        resume()


def test_a_process_that_resumes_may_die_too(in_step, expected, monkeypatch):
    monkeypatch.setattr(store_module, "_CHUNK", 2048)
    train("updates=3")
    with recording() as states:
        resume()
    for state in states:
        Watched.reset(state)
        check_readable(3)
        same(resume(), expected)


@pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")
@pytest.mark.parametrize(
    "harm", ["meta.json is half", "arrays are half", "arrays are other", "no arrays", "no meta.json"]
)
def test_a_half_written_checkpoint_is_never_used(harm, expected, recwarn):
    train("updates=4")
    files = Watched.files()
    part = f"{URL}/checkpoints/000000004/{META if 'meta' in harm else ARRAYS}"
    data = files.pop(part)
    if not harm.startswith("no "):
        files[part] = data[: len(data) // 2] if "half" in harm else data[:-1] + bytes([data[-1] ^ 1])
    Watched.reset(files)
    assert levada.load(URL).policy.version == 2
    same(resume(), expected)
    names = Store(URL).folders("checkpoints")
    if harm == "no meta.json":  # it was never a checkpoint
        assert names == ("000000002", "000000004", "000000006")
    else:
        assert any("skipped: checkpoint watched://runs/a/checkpoints/000000004" in str(w.message) for w in recwarn)
        assert names == ("000000002", "000000004", "000000004.skipped", "000000006")
    check_readable(6)


# ---- uploads that fail


def test_an_upload_that_fails_is_warned_of_once_and_tried_again(in_step, expected):
    Watched.watch(failing("write", below="meta.json"))
    heal = At(5, Watched.watch)
    text = (
        r"watched://runs/a/checkpoints/00000000\d/meta.json cannot be written: OSError: no network; it is tried again"
    )
    with pytest.warns(CheckpointWarning, match=text) as warned:
        run = train(checkpoint_every_updates=1, instruments=[heal])
    assert len(warned) == 1
    same(run, expected)
    del run
    assert copies() == []


def test_a_run_whose_end_cannot_be_uploaded_is_kept(expected, monkeypatch):
    monkeypatch.setattr(remote, "RETRY_S", (0.0, 0.0))
    tried = []
    Watched.watch(lambda operation, path: tried.append(path) or failing("write", below="summary.json")(operation, path))
    with pytest.raises(UploadError) as found:
        train()
    assert len([path for path in tried if path.endswith("summary.json")]) >= 3
    [copy] = copies()
    assert str(found.value).startswith(f"{URL}/summary.json cannot be written: OSError: no network; ")
    assert f"the end of the run is not at {URL}. The whole run is in {copy}, which is kept" in str(found.value)
    kept = levada.load(copy)
    assert kept.summary.params_sha256 == expected[0]
    assert kept.path == copy
    Watched.watch()
    assert levada.resume(copy, until="updates=7", display="quiet").summary.updates == 7  # a run at a path, as any other
    assert steps() == (2, 4, 6)


def test_the_command_says_where_the_run_is_kept(tmp_path):
    code = (
        "import sys; sys.path.insert(0, {tests!r})\n"
        "import levada.cli\n"
        "from support.runs.stores import Watched, failing\n"
        "from levada.run.storage import remote\n"
        "remote.RETRY_S = ()\n"
        "Watched.watch(failing('write', below='summary.json'))\n"
        "sys.exit(levada.cli.main({words!r}))"
    )
    words = f"{COMMAND} --until updates=2 --out {URL}".split()
    script = code.format(tests=str(Path(__file__).parents[2]), words=words)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    [copy] = copies()
    assert done.returncode == 1
    assert f"UploadError: {URL}/summary.json cannot be written: OSError: no network" in done.stderr
    assert f"The whole run is in {copy}, which is kept" in done.stderr
    assert f"The traceback is in copies/{copy.name}/error.txt." in done.stderr
    assert in_process(f"resume {copy} --until updates=3 --quiet", cwd=tmp_path).code == 0


def test_learning_does_not_wait_for_an_upload_and_uploads_do_not_pile_up():
    """While the first is on its way, the run ends; of the others only the last is sent."""
    all_done = threading.Event()
    num_open = []

    def slow(operation, path):
        if operation == "open" and path.endswith(f"000000001/{ARRAYS}"):
            assert all_done.wait(60)

    def look():
        num_open.append(len(os.listdir("/proc/self/fd")))
        if len(num_open) == 30:
            all_done.set()

    Watched.watch(slow)
    looks = [At(update, look) for update in range(1, 31)]
    train("updates=30", checkpoint_every_updates=1, instruments=looks)
    assert max(num_open[5:]) - min(num_open[5:]) < 12  # files of two snapshots at most
    written = {path.split("/")[-2] for path in Watched.files() if path.endswith(META)}
    assert "000000030" in written and len(written) <= 3
    check_readable(30)


def test_a_second_ctrl_c_does_not_wait_for_the_upload(monkeypatch):
    stuck, told, over = threading.Event(), threading.Event(), threading.Event()
    tell = Interrupt._tell
    monkeypatch.setattr(Interrupt, "_tell", lambda self, text: (tell(self, text), told.set()))

    def hang(operation, path):
        if path.endswith("summary.json") and operation == "write":
            stuck.set()
            over.wait(300)

    Watched.watch(hang)

    def press():
        assert stuck.wait(60)
        os.kill(os.getpid(), signal.SIGINT)  # held while the run is saved
        assert told.wait(60)  # two that come before it is handled would be one
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            pytest.warns(
                CheckpointWarning, match=r"the end of the run may be missing at watched.*; the whole run is in"
            ),
        ):
            train("updates=2")
    finally:
        over.set()
    [copy] = copies()
    assert levada.load(copy).policy.version == 2


# ---- errors, interrupts, and other processes


def test_the_error_of_a_failed_run_is_at_the_url(in_step):
    def fail():
        msg = "of the user's own"
        raise ZeroDivisionError(msg)

    with pytest.raises(ZeroDivisionError) as found:
        train(instruments=[At(3, fail)])
    assert "ZeroDivisionError: of the user's own" in Watched.files()[f"{URL}/error.txt"].decode()
    assert any(f"is saved in {URL}" in note for note in found.value.__notes__)
    del found
    assert copies() == []
    assert steps()[-1] >= 2
    with pytest.warns(CheckpointWarning, match="saved when the run was cut off or failed"):
        run = resume()
    assert run.summary.updates == 6
    assert f"{URL}/error.txt" not in Watched.files()


def test_an_interrupted_run_is_at_the_url(expected):
    with pytest.raises(
        KeyboardInterrupt, match=r"everything is saved in watched://runs/a; go on with `levada resume watch"
    ):
        train(instruments=[At(3, lambda: signal.raise_signal(signal.SIGINT))])
    assert levada.load(URL).summary.stopped_by == "interrupted"
    same(resume(), expected)


def test_of_two_processes_the_one_that_came_first_ends(in_step, expected):
    def take_over():
        other = RunDirectory.open(URL)
        other.take_over()

    with pytest.raises(RunDirectoryError) as found:
        train("updates=1000", instruments=[At(4, take_over)])
    [copy] = [path for path in copies() if list_checkpoints(path)]
    assert f"{URL} was taken over by another process" in str(found.value)
    assert f"What this process has learned is in {copy}, which is kept" in str(found.value)
    assert steps() == (2,)  # nothing was uploaded after that
    assert not {f"{URL}/error.txt", f"{URL}/summary.json"} & Watched.files().keys()
    same(resume(), expected)


def test_of_two_processes_that_start_at_once_the_second_goes_on():
    """The other one has found the URL empty, too, and writes its token before the first has looked at its own."""

    def overtake(operation, path):
        if operation in ("info", "cat") and path.endswith("/owner"):
            Watched.watch()
            Watched().pipe_file(path, b"of the other")

    Watched.watch(overtake)
    with pytest.raises(RunDirectoryError, match="watched://runs/a was taken over by another process"):
        train(instruments=[At(1, lambda: pytest.fail("it has started"))])
    assert Watched.files() == {f"{URL}/owner": b"of the other"}


def test_a_run_that_was_deleted_while_it_went_on(in_step):
    with pytest.raises(RunDirectoryError, match="owner is gone: was the run deleted while it went on"):
        train(instruments=[At(3, Watched.reset)])
    assert Watched.files() == {}


def test_a_resume_that_is_refused_takes_nothing_over(in_step):
    train("updates=2")
    before = Watched.files()
    with pytest.raises(levada.errors.UntilError):
        resume("updates=many")
    config = json.loads(before[f"{URL}/config.json"])
    config["identity"]["flow_hash"] = "ab" * 32
    Watched.reset(before | {f"{URL}/config.json": json.dumps(config).encode()})
    before = Watched.files()
    with pytest.raises(LoadError, match="watched://runs/a was a run of another flow"):
        resume()
    assert Watched.files() == before
    assert copies() == []


def test_a_resumed_run_that_fails_at_once_removes_no_checkpoint(in_step, expected):
    class Fails:
        def on_event(self, event):
            raise ZeroDivisionError

    train("updates=4")
    with pytest.raises(ZeroDivisionError):
        resume(instruments=[Fails()])
    assert f"{URL}/error.txt" in Watched.files()
    assert steps() == (2, 4)
    same(resume(), expected)
    assert steps() == (4, 6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "already holds a run: nothing is overwritten"),
        ("checkpoints/000000001/meta.json", "already holds a run"),
        ("notes.txt", r"holds other files \(notes.txt\): nothing is overwritten"),
        ("", r"holds other files \(a\)"),
    ],
)
def test_a_url_that_holds_something_is_left_alone(name, words):
    Watched.reset({f"{URL}/{name}".rstrip("/"): b"mine"})
    with pytest.raises(RunDirectoryError, match=f"watched://runs/a {words}"):
        train()
    assert list(Watched.files().values()) == [b"mine"]
    assert copies() == []


def test_files_of_others_are_left_alone(in_step, expected):
    train("updates=3")
    mine = {
        f"{URL}/{name}": b"mine" for name in ("notes.txt", "checkpoints/best/arrays", "checkpoints/000000001.skipped/a")
    }
    for path, data in mine.items():
        Watched().pipe_file(path, data)
    same(resume(), expected)
    assert mine.items() <= Watched.files().items()


@pytest.mark.parametrize("operation", ["write", "ls"])
def test_a_url_that_cannot_be_written_is_refused_before_the_run_starts(operation):
    Watched.watch(failing(operation, error=PermissionError, message="Access Denied"))
    with pytest.raises(RunDirectoryError, match=r"watched://runs/a.* cannot be .*: PermissionError: Access Denied"):
        train(instruments=[At(1, lambda: pytest.fail("it has started"))])
    assert copies() == []


def test_a_url_that_cannot_be_written_is_refused_before_a_run_goes_on():
    train("updates=2")
    before = Watched.files()
    Watched.watch(failing("write", "rm", error=PermissionError, message="Access Denied"))
    with pytest.raises(RunDirectoryError, match="cannot be written: PermissionError: Access Denied"):
        resume()
    assert Watched.files() == before
    assert levada.load(URL).policy.version == 2  # which needs no permission to write


def test_a_disk_without_room_for_the_copy(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(RunDirectoryError, match=r"the local copy in /proc/nowhere cannot be written: .*; TMPDIR names"):
        train()
    assert Watched.files() == {}
