"""Uploads to the Hugging Face Hub: what is uploaded, what is refused, and what the model card says."""

import json
import re
import shutil

import huggingface_hub
import pytest
import yaml
from support.hub import TOKEN, fake_hub, sha
from support.runs.cli import TINY_FIELDS, tree

import levada
from levada.api import LoadError
from levada.errors import CheckpointWarning, RunDirectoryError
from levada.hub import HubError, files
from levada.run.storage.checkpoint import ARRAYS, META, REPLAYS_ZIP, save
from levada.run.storage.directory import RunDirectory

FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}
DRAW = files.draw
REPO = "user/ppo-CartPole-v1"
URL = f"hf://{REPO}"
PICTURES = {"report.html", "learning_curve.png"}
OF_THE_RUN = {"config.json", "summary.json", "metrics.jsonl"}


def names(step, *more):
    return {
        "README.md",
        *PICTURES,
        *OF_THE_RUN,
        f"checkpoints/{step:09d}/{ARRAYS}",
        f"checkpoints/{step:09d}/{META}",
        *more,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with several checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "a run, ü"
    levada.train("ppo", "CartPole-v1", until="updates=6", seed=3, out=out, checkpoint_every_updates=2, **FIELDS)
    return out


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def no_picture_is_drawn(monkeypatch):
    """Drawing takes longer than the rest; tests of pictures put it back."""
    monkeypatch.setattr(files, "draw", lambda groups, path, *, per_run: path.write_bytes(b"a picture"))


@pytest.fixture
def pictures(monkeypatch, no_picture_is_drawn):
    monkeypatch.setattr(files, "draw", DRAW)


@pytest.fixture
def hub(monkeypatch):
    with fake_hub(monkeypatch) as hub:
        yield hub


def push(run, *, num_episodes=0, **options):
    return levada.push(run, REPO, num_episodes=num_episodes, **options)


def metadata(card):
    return yaml.safe_load(card.split("---\n")[1])


# ---- what is uploaded


def test_a_run_is_uploaded_in_one_commit_and_loaded_from_there(made, hub):
    done = push(made, num_episodes=2)
    assert hub.commits == ["ppo, 6 updates"]
    assert set(hub.files(REPO)) == {".gitattributes", *names(6)}
    assert {name: len(data) for name, data in hub.files(REPO).items() if name != ".gitattributes"} == done.sizes
    assert (done.where.endswith(f"/{REPO}"), done.commit, done.notes) == (True, sha(2), ())
    found = levada.load(URL)
    assert found.summary.params_sha256 == levada.load(made).summary.params_sha256
    assert levada.evaluate(found, num_episodes=2).episodes == done.evaluations["policy"].episodes
    assert str(found).endswith(URL)


def test_the_files_in_a_directory_are_those_of_the_upload(made, hub, tmp_path):
    push(made)
    asked = len(hub.asked)
    done = push(made, out=tmp_path / "new" / "out")
    assert len(hub.asked) == asked
    assert (done.commit, done.where) == (None, str(tmp_path / "new" / "out"))
    written = {name: data for name, data in tree(tmp_path / "new" / "out").items() if data is not None}
    uploaded = dict(hub.files(REPO))
    del uploaded[".gitattributes"]
    assert written == uploaded
    assert levada.load(tmp_path / "new" / "out").summary.updates == 6
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_nothing_of_the_run_is_changed(run, tmp_path, pictures):
    before = tree(run)
    done = push(run, num_episodes=1, onnx=True, out=tmp_path / "out")
    assert tree(run) == before
    assert set(done.sizes) == names(6, "policy.onnx")
    assert (tmp_path / "out" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "Without levada: `policy.onnx` for ONNX Runtime" in (tmp_path / "out" / "README.md").read_text()


def test_a_later_upload_replaces_the_files_of_the_earlier_one(run, hub):
    push(run)
    hub.files(REPO).update({"policy.onnx": b"old", "LICENSE": b"mine", "replay.mp4": b"mine", "policy/notes": b"mine"})
    push(run, checkpoint=4)
    kept = {".gitattributes", "LICENSE", "replay.mp4", "policy/notes"}
    assert set(hub.files(REPO)) == {*kept, *names(4)} - {"summary.json"}
    assert levada.load(URL).policy.version == 4
    assert levada.load(f"{URL}@{sha(2)}").policy.version == 6


def test_a_checkpoint_before_the_end_goes_without_what_came_after_it(made, tmp_path):
    done = push(made, checkpoint=4, out=tmp_path / "out")
    assert set(done.sizes) == names(4) - {"summary.json"}
    updates = [row["charts/updates"] for row in RunDirectory.open(tmp_path / "out").metrics()]
    assert updates == [1, 2, 3, 4]
    assert "params_sha256" not in (tmp_path / "out" / "README.md").read_text()
    found = levada.load(tmp_path / "out")
    assert (found.summary.stopped_by, found.summary.updates) == ("cut off", 4)


@pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")
def test_a_damaged_checkpoint_is_not_uploaded(run, tmp_path):
    (run / "checkpoints" / "000000006" / ARRAYS).write_bytes(b"torn")
    with pytest.warns(CheckpointWarning, match="skipped"):
        done = push(run, out=tmp_path / "out")
    assert set(done.sizes) == names(4) - {"summary.json"}


@pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")
def test_a_damaged_summary_is_left_out(run, tmp_path):
    (run / "summary.json").write_bytes(b"{")
    with pytest.warns(CheckpointWarning, match="summary.json is torn"):
        done = push(run, out=tmp_path / "out")
    assert set(done.sizes) == names(6) - {"summary.json"}


def test_a_result_is_uploaded_with_the_checkpoint_of_its_policy(run, tmp_path):
    push(levada.load(run, checkpoint=2), out=tmp_path / "out")
    assert levada.load(tmp_path / "out").policy.version == 2


def test_the_best_policy_is_uploaded_and_evaluated_for_the_card(tmp_path):
    run = levada.train(
        "ppo", "CartPole-v1", until="updates=4", seed=3, out=tmp_path / "run", eval_every=2, eval_episodes=1, **FIELDS
    )
    best = run.summary.evaluations["eval"].best_version
    shutil.rmtree(run.path / "checkpoints" / f"{best:09d}", ignore_errors=True)  # only a few are kept
    for number, done in enumerate(
        (
            push(run.path, checkpoint="best", num_episodes=1, out=tmp_path / "0"),
            push(levada.load(run.path, checkpoint="best"), num_episodes=1, out=tmp_path / "1"),
        )
    ):
        assert set(done.sizes) == names(best, *(f"checkpoints/best/{best:09d}/{name}" for name in (ARRAYS, META))) - {
            "summary.json"
        }
        assert done.evaluations["policy"].version == levada.load(tmp_path / str(number)).policy.version == best
        assert done.notes == (
            "the checkpoint with the best evaluation has weights alone: the run can be loaded, and not resumed",
        )


def test_a_result_whose_checkpoint_is_gone(run, tmp_path):
    result = levada.load(run, checkpoint=2)
    shutil.rmtree(run / "checkpoints" / "000000002")
    with pytest.raises(LoadError, match="has no checkpoint of this Result any more, which is that of 2 updates"):
        push(result, out=tmp_path / "out")


def test_a_run_at_a_url_is_uploaded(tmp_path):
    levada.train("ppo", "CartPole-v1", until="updates=2", out="memory://runs/pushed", **FIELDS)
    done = push("memory://runs/pushed", out=tmp_path / "out")
    assert set(done.sizes) == names(2) - {"report.html"}
    assert done.notes == ("report.html is left out: there is none of a run at a URL",)
    assert levada.load(tmp_path / "out").policy.version == 2


def test_logs_above_a_size_stay(run, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOG_NBYTES", 500)
    done = push(run, out=tmp_path / "out")
    assert set(done.sizes) == names(6) - {"metrics.jsonl", *PICTURES}
    assert re.fullmatch(r"metrics.jsonl is left out: it has [\d.]+ KiB, more than 500 bytes", done.notes[0])
    assert "report.html is left out: it has" in done.notes[1]


@pytest.mark.parametrize(
    ("damage", "note"),
    [
        (lambda path: path.unlink(), "the run has no metrics.jsonl"),
        (lambda path: path.write_bytes(b"[]\n"), "metrics.jsonl is left out: "),
        (lambda path: path.write_bytes(b""), "learning_curve.png is left out: no run has charts/episodic_return"),
    ],
)
def test_a_run_without_metrics(run, tmp_path, damage, note, pictures):
    damage(run / "metrics.jsonl")
    done = push(run, out=tmp_path / "out")
    assert any(said.startswith(note) for said in done.notes)
    assert "learning_curve.png" not in done.sizes
    assert levada.load(tmp_path / "out").policy.version == 6


def test_without_matplotlib_there_is_no_picture(run, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    done = push(run, out=tmp_path / "out")
    assert done.notes == ("learning_curve.png is left out: it needs matplotlib, pip install 'levada[plot]'",)
    assert "![" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.filterwarnings("always::levada.errors.CheckpointWarning")
def test_replays_go_along_if_they_are_asked_for(tmp_path):
    fields = {"display": "quiet", "log": "none", "num_envs": 2, "hidden_sizes": (8,), "batch_size": 8}
    run = levada.train(
        "dqn", "CartPole-v1", until="updates=2", out=tmp_path / "run", save_replays=True, learning_starts=32, **fields
    )
    replays = f"checkpoints/000000002/{REPLAYS_ZIP}"
    assert replays not in push(run, out=tmp_path / "without").sizes
    assert replays in push(run, out=tmp_path / "with", replays=True).sizes
    again = levada.resume(tmp_path / "with", until="updates=3", display="quiet")
    assert again.summary.updates == 3
    with pytest.warns(CheckpointWarning, match="fresh episodes were asked for"):
        again = levada.resume(tmp_path / "without", until="updates=3", display="quiet", fresh_episodes=True)
    assert again.summary.updates == 3


def test_that_a_run_has_no_replays_is_said(run, tmp_path):
    done = push(run, out=tmp_path / "out", replays=True)
    assert done.notes == ("the checkpoint has no contents of replays: the run was trained without --save-replays",)


def test_links_in_a_run_are_not_followed(run, tmp_path):
    secret = tmp_path / "secret"
    (run / "metrics.jsonl").rename(secret)
    (run / "metrics.jsonl").symlink_to(secret)
    done = push(run, out=tmp_path / "out")
    assert "metrics.jsonl" not in done.sizes
    assert "symbolic link" in done.notes[0]


# ---- what is refused


def test_without_a_token_nothing_is_done(made, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(
        HubError, match=r"no token for the Hugging Face Hub: log in with `hf auth login`, or set HF_TOKEN"
    ):
        push(made)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "the token is not valid: log in"), (403, "the token does not allow it"), (500, "HfHubHTTPError: ")],
)
def test_the_hub_says_no(made, hub, status, words):
    hub.status["/api/repos/create"] = status
    with pytest.raises(HubError, match=f"^{REPO} cannot be uploaded: {words}") as found:
        push(made)
    assert "\n" not in str(found.value)
    assert TOKEN not in str(found.value)
    assert hub.repositories == {}


def test_a_token_that_is_not_valid(made, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(HubError, match=f"{REPO} cannot be looked up: the token is not valid"):
        push(made)


def test_offline(made, hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match=r"cannot be looked up: OfflineModeIsEnabled: .*HF_HUB_OFFLINE"):
        push(made)
    with pytest.raises(RunDirectoryError, match=rf"{URL}/config.json cannot be read: OfflineModeIsEnabled"):
        levada.load(URL)


def test_a_commit_that_fails_leaves_no_run(made, hub):
    hub.status["/commit/"] = 503
    with pytest.raises(HubError, match=f"{REPO} cannot be uploaded: HfHubHTTPError"):
        push(made)
    assert hub.files(REPO) == {".gitattributes": b""}


def test_a_repository_with_other_files_is_not_touched(made, hub):
    hub.make(REPO, {"README.md": b"", "model.safetensors": b"", "a\x1b": b"", "b": b"", "c": b""})
    with pytest.raises(
        HubError, match=r"holds other files than a run \(a\\x1b, b, c, \.\.\.\): nothing is overwritten"
    ) as found:
        push(made)
    assert str(found.value).isprintable()
    assert hub.commits == []


def test_an_empty_repository_is_used(made, hub):
    hub.make(REPO, {".gitattributes": b"", "README.md": b"made on the page"})
    push(made)
    assert b"made on the page" not in hub.files(REPO)["README.md"]


def test_a_public_repository_is_not_taken_for_a_private_one(made, hub):
    hub.make(REPO)
    with pytest.raises(HubError, match=f"{REPO} exists and is public"):
        push(made, private=True)
    assert hub.commits == []


def test_a_private_repository(made, hub, monkeypatch):
    push(made, private=True)
    assert hub.private == {REPO}
    push(made, private=True)
    assert len(hub.commits) == 2
    assert levada.load(URL).policy.version == 6
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RunDirectoryError, match=r"or it is private: `hf auth login` or HF_TOKEN gives access"):
        levada.load(URL)


@pytest.mark.parametrize(
    ("repo_id", "why"),
    [
        ("name", "'name' is no name of a repository: it has no user or organization; expected user/name"),
        ("hf://user/name", "it is a URL"),
        ("user/name/more", "the Hub allows letters, digits"),
        ("user/a b", "the Hub allows letters, digits"),
        ("user/-a", "the Hub allows letters, digits"),
        ("user/a\x1b[31m", r"'user/a\\x1b\[31m' is no name"),
        ("user/" + "a" * 97, "96 characters"),
        ("", "it has no user"),
        (7, "repo_id is a int, expected user/name"),
        (None, "repo_id is a NoneType"),
    ],
)
def test_a_name_that_is_none_of_a_repository(made, repo_id, why):
    with pytest.raises(HubError, match=why):
        levada.push(made, repo_id)


def test_a_directory_that_is_not_empty_is_not_written_to(made, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HubError, match="holds other files: nothing is overwritten; give a new directory"):
        push(made, out=tmp_path)
    with pytest.raises(HubError, match="file is a file"):
        push(made, out=tmp_path / "file")


def test_after_an_error_there_is_no_directory(run, tmp_path, monkeypatch):
    monkeypatch.setattr("levada.onnx.write.find_spec", lambda name: None)
    with pytest.raises(levada.errors.ExportError, match=r"pip install 'levada\[export\]'"):
        push(run, out=tmp_path / "out", onnx=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_not_installed_is_said(made, monkeypatch):
    monkeypatch.setattr("levada.hub.repository.find_spec", lambda name: None)
    with pytest.raises(HubError, match=r"push needs huggingface_hub: pip install 'levada\[hub\]'"):
        push(made)


def test_arguments_that_do_not_fit(made):
    with pytest.raises(ValueError, match="num_episodes=-1"):
        push(made, num_episodes=-1)
    with pytest.raises(LoadError, match="checkpoint and at are for the directory of a run"):
        push(levada.load(made), checkpoint=2)


# ---- the card


def test_the_metadata_are_those_of_the_hub(made, hub):
    done = push(made, num_episodes=3)
    found = metadata(hub.files(REPO)["README.md"].decode())
    assert (found["library_name"], found["pipeline_tag"]) == ("levada", "reinforcement-learning")
    assert {"CartPole-v1", "ppo", "reinforcement-learning"} <= set(found["tags"])
    [model] = found["model-index"]
    [result] = model["results"]
    evaluation = done.evaluations["policy"]
    assert model["name"] == "ppo-CartPole-v1"
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    [metric] = result["metrics"]
    assert (metric["type"], metric["args"]["num_episodes"]) == ("mean_reward", 3)
    assert metric["value"] == f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}"


def test_without_episodes_the_card_says_that_the_return_is_that_of_training(made, tmp_path):
    push(made, out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    [metric] = metadata(card)["model-index"][0]["results"][0]["metrics"]
    summary = levada.load(made).summary
    assert metric["name"] == "mean_reward of the last episodes of training"
    assert float(metric["value"]) == pytest.approx(summary.return_mean_100, abs=0.01)
    assert "Not evaluated. This is the mean return of the last 100 episodes of training" in card


def test_a_run_without_an_episode_has_no_return(tmp_path, run):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "return_mean_100": None}))
    push(run, out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "model-index" not in metadata(card)
    assert "| `policy` | - |" in card


def test_several_policies_have_a_row_each(tmp_path, monkeypatch):
    monkeypatch.setattr("levada.onnx.export", lambda result, path, *, policy: path.write_bytes(policy.encode()))
    run = levada.train(
        "multi", "pettingzoo:mpe2.simple_speaker_listener_v4", until="updates=1", out=tmp_path / "run", display="quiet",
        log="none", policy=("ppo:speaker_0", "ppo2=ppo:listener_0"),
    )  # fmt: skip
    done = levada.push(run, REPO, out=tmp_path / "out", num_episodes=1, onnx=True)
    card = (tmp_path / "out" / "README.md").read_text()
    assert set(done.evaluations) == set(run.policies)
    for name in run.policies:
        assert f"| `{name}` | 1 |" in card
        assert f"policy-{name}.onnx" in done.sizes
    metrics = metadata(card)["model-index"][0]["results"][0]["metrics"]
    assert {metric["name"] for metric in metrics} == {f"mean_reward of {name}" for name in run.policies}
    assert levada.load(tmp_path / "out").policies.keys() == run.policies.keys()


def test_a_newer_checkpoint_appears_while_the_run_goes_on(run, tmp_path):
    """What is uploaded is the checkpoint that was evaluated."""
    result = levada.load(run)
    checkpoint = levada.run.storage.checkpoint.load(run / "checkpoints" / "000000006")
    save(run, 8, checkpoint.arrays, checkpoint.meta, flow_hash=checkpoint.flow_hash)
    push(result, out=tmp_path / "out")
    assert levada.load(tmp_path / "out").policy.version == 6


def test_an_environment_that_cannot_be_named(hub):
    import gymnasium

    result = levada.train(
        "ppo", lambda: gymnasium.make("CartPole-v1"), until="updates=1", out="memory://runs/f", **FIELDS
    )
    push(result)
    card = hub.files(REPO)["README.md"].decode()
    assert f'lv.load("{URL}", env=..., algorithm=...)' in card
    assert "levada eval" not in card
