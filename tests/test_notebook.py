"""levada in a real kernel: the example notebook, interrupting, and what is defined in a cell."""

import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from support.documents import ROOT

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
PATIENCE_S = 600


@pytest.fixture(autouse=True, scope="module")
def jupyter(tmp_path_factory) -> Iterator[None]:
    """Keep what Jupyter writes out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        yield


@pytest.fixture(scope="module")
def executed(jupyter, tmp_path_factory) -> tuple[nbformat.NotebookNode, Path]:
    """The notebook with its outputs, and the directory in which it ran."""
    notebook, place = nbformat.read(NOTEBOOK, as_version=4), tmp_path_factory.mktemp("notebook")
    NotebookClient(
        notebook, timeout=PATIENCE_S, kernel_name="python3", resources={"metadata": {"path": str(place)}}
    ).execute()
    return notebook, place


def outputs(notebook, source):
    """Outputs of the only cell that contains some code."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return cell.outputs


def test_the_notebook_is_stored_without_outputs_and_is_short():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
    assert sum(len(cell.source.splitlines()) for cell in code) < 60


def test_the_notebook_runs_and_writes_nothing_but_its_outputs(executed):
    notebook, _ = executed
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert {output.output_type for output in found} == {"display_data", "execute_result"}


@pytest.mark.parametrize(("source", "node"), [("shards=2", "gae"), ("class MonteCarlo", "monte_carlo")])
def test_a_flow_is_drawn(executed, source, node):
    [output] = outputs(executed[0], source)
    assert output.data["image/svg+xml"].startswith("<svg")
    assert f'data-node="{node}"' in output.data["image/svg+xml"]
    assert output.data["text/plain"].startswith("flow ") and f"--> {node} (map)" in output.data["text/plain"]


def test_a_run_is_one_output_with_its_curve_and_then_its_table(executed):
    shown, result = outputs(executed[0], "run = lv.train")
    assert "What limits it: " in shown.data["text/html"]
    assert shown.data["text/html"].count("<path") == 1
    assert shown.data["text/plain"].startswith("stopped by ")
    assert "<td" in result.data["text/html"] and "directory" in result.data["text/html"]


def test_runs_are_compared_and_the_policy_acts(executed):
    [output] = outputs(executed[0], "lv.compare")
    assert "95 % interval" in output.data["text/html"]
    assert output.data["text/html"].count("<path") == 2  # the curve and its interval
    assert float(outputs(executed[0], "policy.act")[0].data["text/plain"]) > 50.0


def test_the_display_and_the_kernel_change_no_bit(executed):
    import levada as lv

    _, place = executed
    there = json.loads(next(place.glob("runs/MonteCarlo-*/summary.json")).read_text())
    options = {"until": "steps=20_000", "seed": 1, "display": "quiet", "out": place / "here"}
    assert lv.train(lv.PPO(gae_lambda=1.0), "CartPole-v1", **options).summary.params_sha256 == there["params_sha256"]


# ---- a kernel for the rest


class Kernel:
    """A kernel, and what a notebook does with it."""

    def __init__(self, place):
        self.manager, self.client = start_new_kernel(PATIENCE_S, kernel_name="python3", cwd=str(place))
        self.place = place

    def run(self, code, on_message=lambda message: None):
        """Execute code; return the reply and the messages with outputs."""
        asked = self.client.execute(code)
        messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            messages.append(message)
            on_message(message)
        reply = self.client.get_shell_msg(timeout=PATIENCE_S)
        while reply["parent_header"].get("msg_id") != asked:  # such as an answer to what the client asked at its start
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
        return reply["content"], messages

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def kernel(jupyter, tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    try:
        reply, _ = kernel.run("import levada as lv, signal\nout = iter(map('run-{}'.format, range(99)))")
        assert reply["status"] == "ok"
        yield kernel
    finally:
        kernel.close()


def test_interrupting_the_kernel_saves_the_run(kernel):
    interrupted = []

    def interrupt(message):
        if message["msg_type"] == "update_display_data" and "<path" in message["content"]["data"]["text/html"]:
            if not interrupted:
                kernel.manager.interrupt_kernel()
            interrupted.append(message)

    before = "before = signal.getsignal(signal.SIGINT)\n"
    reply, messages = kernel.run(before + "lv.train('ppo', 'CartPole-v1', until='steps=1e9', out='long')", interrupt)
    assert (reply["status"], reply["ename"]) == ("error", "Interrupted")
    assert "everything is saved in long; go on with `levada resume long`" in reply["evalue"]
    [error] = [message["content"] for message in messages if message["msg_type"] == "error"]
    assert error["traceback"] == [f"Interrupted: {reply['evalue']}"]
    assert "stopped by interrupted" in interrupted[-1]["content"]["data"]["text/plain"]
    assert json.loads((kernel.place / "long" / "summary.json").read_text())["stopped_by"] == "interrupted"
    reply, _ = kernel.run(
        "assert signal.getsignal(signal.SIGINT) == before\nassert lv.load('long').summary.updates > 0"
    )
    assert reply["status"] == "ok"


def test_outputs_of_a_run_in_a_thread_belong_to_its_cell(kernel):
    reply, messages = kernel.run(
        "from threading import Thread\n"
        "thread = Thread(target=lv.train, args=('ppo', 'CartPole-v1'), kwargs=dict(until='updates=2', out=next(out)))\n"
        "thread.start(); thread.join()"
    )
    assert reply["status"] == "ok"
    kinds = [message["msg_type"] for message in messages]
    assert kinds.count("display_data") == 1 and kinds[-1] == "update_display_data"
    assert "stopped by updates=2" in messages[-1]["content"]["data"]["text/html"]


CELL = """
import gymnasium
def make():
    return gymnasium.make("CartPole-v1")
def train(env, on):
    return lv.train("ppo", env, until="updates=1", shards=2, on=on, display="quiet", out=next(out)).summary.deployment
"""


def test_an_environment_from_a_cell_is_refused_for_worker_processes_with_the_way_out(kernel):
    assert kernel.run(CELL)[0]["status"] == "ok"
    reply, _ = kernel.run("train(make, 'processes:2')")
    assert reply["ename"] == "DeploymentError"
    assert reply["evalue"].startswith("make is defined in a notebook or at a prompt")
    assert "%%writefile my_module.py" in reply["evalue"] and "on='threads'" in reply["evalue"]
    reply, _ = kernel.run(
        "assert train(make, 'threads:2') == 'threads:2'; assert 'processes' not in train(make, 'auto')"
    )
    assert reply["status"] == "ok", reply


def test_an_environment_from_a_module_of_a_cell_trains_in_worker_processes(kernel):
    assert kernel.run(f"%%writefile my_module.py\n{CELL}")[0]["status"] == "ok"
    reply, _ = kernel.run("import my_module; assert train(my_module.make, 'processes:2') == 'processes:2'")
    assert reply["status"] == "ok", reply


def test_an_algorithm_from_a_cell_trains_in_worker_processes_unless_its_learner_is_sent(kernel):
    assert kernel.run(f"{CELL}\nclass Own(lv.PPO): pass")[0]["status"] == "ok"
    own = "lv.train(Own, 'CartPole-v1', until='updates=1', display='quiet', out=next(out), on={!r})"
    assert kernel.run(own.format("processes:2"))[0]["status"] == "ok"
    reply, _ = kernel.run(own.format("processes:2,learner=worker"))
    assert reply["ename"] == "DeploymentError"
    assert reply["evalue"].startswith("Own is defined in a notebook or at a prompt")
