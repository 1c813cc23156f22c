"""What wandb, MLflow and trackio were sent is what metrics.jsonl has; a service that fails does not end a run."""

import json
import math
import struct
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from support.runs import cli as cli_harness
from support.runs.fakes import Clock

import levada
from levada.run import remote_loggers
from levada.run.active import ActiveRun
from levada.run.identity import Identity
from levada.run.loggers import LogError
from levada.run.remote_loggers import LoggerWarning, Mlflow, RemoteLogger, Trackio, Wandb

IDENTITY = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")
ROWS = [
    {"charts/updates": 1.0, "charts/SPS": 1e300, "lag/gae->batch/mean": 0.5},
    {"charts/updates": 2.0, "charts/SPS": math.nan, "lag/gae->batch/mean": 0.25},
]
ROOT = Path(levada.__file__).parent.parent


def log_rows(logger, path=Path("runs/a run")):
    logger.start(ActiveRun(IDENTITY, {"num_envs": 8, "hidden_sizes": [8, 8]}, path))
    for number, row in enumerate(ROWS, 1):
        logger.write(32 * number, row)
    logger.close(None)


class Failing(RemoteLogger):
    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, []

    def _call(self, what):
        self.calls.append(what)
        if what == self.at:
            raise ConnectionError("network is unreachable")

    def _start(self, run):
        self._call("start")

    def _write(self, env_steps, values):
        self._call("write")

    def _close(self, summary):
        self._call("close")


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("start", ["start"]),
        ("write", ["start", "write", "close"]),
        ("close", ["start", "write", "write", "write", "close"]),
    ],
)
def test_a_service_that_fails_is_warned_of_once_and_only_closed(tmp_path, at, calls):
    logger = Failing(at)
    with pytest.warns(LoggerWarning) as caught:
        run = levada.train(
            "ppo", "CartPole-v1", until="updates=3", out=tmp_path / "run", log="none", display="quiet", loggers=[logger],
            **cli_harness.TINY_FIELDS,
        )  # fmt: skip
    (warning,) = caught
    assert str(warning.message) == (
        f"Failing.{at} failed: ConnectionError: network is unreachable; the run goes on without Failing, and metrics.jsonl has "
        "all metrics"
    )
    assert (run.summary.stopped_by, logger.calls) == ("updates=3", calls)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(remote_loggers.importlib.util, "find_spec", lambda name: None)
    for name in ("wandb", "mlflow", "trackio"):
        with pytest.raises(LogError, match=rf"{name} is not installed; run: pip install 'levada\[{name}\]'"):
            levada.train("ppo", "CartPole-v1", until="updates=1", out=tmp_path / "run", log=name)
    assert not (tmp_path / "run").exists()


def wandb_history(folder):
    """Rows in the file of an offline run: a log in the format of LevelDB, of protobuf records."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, parts = path.read_bytes(), 7, b""  # after the head of the file
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(parts)
            parts = b""
            yield record


def logged_by_wandb(records):
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def in_fresh_process(code, tmp_path):
    """wandb starts threads and patches modules, which should not stay in the process of the tests."""
    path = ":".join([str(ROOT), *sys.path])
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": path,
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_wandb_has_what_was_written(tmp_path):
    pytest.importorskip("wandb")
    in_fresh_process(
        """
        from pathlib import Path
        from levada.run.active import ActiveRun
        from levada.run.identity import Identity
        from levada.run.remote_loggers import Wandb

        logger = Wandb(project="tests")
        identity = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")
        logger.start(ActiveRun(identity, {"num_envs": 8}, Path("runs/a run")))
        logger.write(32, {"charts/updates": 1.0, "lag/gae->batch/mean": 0.5})
        logger.write(64, {"charts/updates": 2.0, "lag/gae->batch/mean": 0.25})
        logger.close(None)
        """,
        tmp_path,
    )
    records = list(wandb_history(tmp_path))
    rows = logged_by_wandb(records)
    names = ("env_steps", "charts/updates", "lag/gae->batch/mean")
    assert [[row[name] for name in names] for row in rows] == [[32, 1.0, 0.5], [64, 2.0, 0.25]]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.display_name) == ("tests", "a run")
    assert {item.key: item.value_json for item in run.config.update}["num_envs"] == "8"


def test_wandb_that_syncs_tensorboard_sees_the_events(tmp_path):
    pytest.importorskip("wandb")
    in_fresh_process(
        """
        import wandb
        from pathlib import Path
        from levada.run.active import ActiveRun
        from levada.run.identity import Identity
        from levada.run.loggers import TensorBoard

        run = wandb.init(project="tests", sync_tensorboard=True)
        logger = TensorBoard("run")
        identity = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")
        logger.start(ActiveRun(identity, {}, Path("run")))
        logger.write(32, {"charts/updates": 1.0})
        logger.write(64, {"charts/updates": 2.0})
        logger.close(None)
        run.finish()
        """,
        tmp_path,
    )
    rows = logged_by_wandb(wandb_history(tmp_path))
    assert [(row["global_step"], row["charts/updates"]) for row in rows if "charts/updates" in row] == [
        (32, 1),
        (64, 2),
    ]


def test_mlflow_has_what_was_written(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # stores of files are on their way out, but need no database
        with warnings.catch_warnings():
            warnings.simplefilter("error", LoggerWarning)
            log_rows(Mlflow(tracking_uri=uri, clock=Clock(0.0)))
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("levada")
        (run,) = client.search_runs([experiment.experiment_id])
        history = {
            name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
    assert (run.info.run_name, run.info.status) == ("a run", "FAILED")  # for there was no summary
    assert run.data.params == {"num_envs": "8", "hidden_sizes": "[8, 8]"}
    assert history == {
        "charts/updates": [(32, 1.0), (64, 2.0)],
        "charts/SPS": [(32, 1e300)],
        "lag/gae-_batch/mean": [(32, 0.5), (64, 0.25)],
    }


def test_trackio_has_what_was_written(tmp_path):
    pytest.importorskip("trackio")
    in_fresh_process(
        f"""
        import json, os
        os.environ["TRACKIO_DIR"] = {str(tmp_path / "trackio")!r}
        from pathlib import Path
        from levada.run.active import ActiveRun
        from levada.run.identity import Identity
        from levada.run.remote_loggers import Trackio

        logger = Trackio()
        identity = Identity(algorithm="ppo", env="CartPole-v1", seed=1, deployment="inline", flow_hash="")
        logger.start(ActiveRun(identity, {{"num_envs": 8}}, Path("runs/a")))
        logger.write(32, {{"charts/updates": 1.0}})
        logger.write(64, {{"charts/updates": 2.0}})
        logger.close(None)
        from trackio.sqlite_storage import SQLiteStorage
        rows = SQLiteStorage.get_logs("levada", SQLiteStorage.get_runs("levada")[0])
        Path("rows.json").write_text(json.dumps([[row["step"], row["charts/updates"]] for row in rows]))
        """,
        tmp_path,
    )
    assert json.loads((tmp_path / "rows.json").read_text()) == [[32, 1.0], [64, 2.0]]


def test_a_resumed_run_has_a_name_of_its_own():
    run = ActiveRun(IDENTITY, {}, Path("runs/first"), resumed_at=64)
    assert remote_loggers._name(run) == "first from 64"


def test_loggers_are_made_by_their_names():
    kinds = {name: type(remote_loggers.make(name)) for name in remote_loggers.PACKAGES}
    assert kinds == {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
