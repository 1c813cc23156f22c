"""The page in a real browser: what it shows of runs that go on, whom it shows it, and what hostile runs can do to it: nothing."""

import os
import re
import shlex
import shutil
import signal
import time

import msgspec
import pytest
from support.browser import AXE, browser, needs_axe, needs_browser, opened, violations
from support.runs import cli as cli_harness
from support.watching import running, served

import levada
from levada.run.frames.file import FrameFile, FrameReader
from levada.run.storage.config import RunConfig
from levada.watch.report import report_of

pytestmark = needs_browser

PROGRAM = """
    import os, sys
    import gymnasium
    import levada

    def make():
        with open("pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
        return gymnasium.make("CartPole-v1")

    if __name__ == "__main__":
        levada.train(
            "ppo", make, until="minutes=60", out="run", display="quiet", on="processes:3", shards=2, max_lag=0, num_envs=2,
            num_steps=32, minibatch_size=16, num_epochs=NUM_EPOCHS, hidden_sizes=(64, 64), compile=False, log="none",
        )
"""
HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "finished"
    levada.train("ppo", "CartPole-v1", until="updates=20", seed=3, out=out, display="quiet", **cli_harness.TINY_FIELDS)
    return out


@pytest.fixture(scope="module")
def going_on(tmp_path_factory):
    """A run whose learner is slow, so that its samplers are held back until weights are published."""
    folder = tmp_path_factory.mktemp("going")
    with running(PROGRAM.replace("NUM_EPOCHS", "20"), folder) as program:
        until(lambda: (folder / "run" / "frames.bin").exists() or program.poll() is not None)
        assert program.poll() is None
        yield folder, program


def until(is_true, timeout_s=300.0):
    """Wait for the run, which goes on by itself."""
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.05)


def fact(page, name):
    return page.locator(f"[data-fact='{name}']").inner_text()


def count(text):
    return int(re.match(r"[\d,]+", text)[0].replace(",", ""))


def test_a_run_appears_changes_and_shows_a_killed_worker(chromium, going_on):
    folder, program = going_on
    with served(folder / "run") as url:
        page = opened(chromium, url)
        page.wait_for_selector("g[data-node='rollout']")
        page.wait_for_selector("[data-fact='env steps']:not(:empty)")
        first = count(fact(page, "env steps"))
        until(lambda: count(fact(page, "env steps")) > first)
        assert page.locator(".status").inner_text().startswith("running")  # and perhaps for how long it is silent
        until(lambda: page.locator(".strips li").count() >= 3)
        assert page.locator(".strips li").count() == 3  # main, and two workers
        assert fact(page, "restarts") == "0"
        pids = {int(line) for line in (folder / "pids").read_text().split()} - {program.pid}
        os.kill(max(pids), signal.SIGKILL)
        until(lambda: fact(page, "restarts") != "0")
        assert "rollout" in page.locator(".events").inner_text()
        assert page.problems == []
        page.close()


MARKS = """
    () => {
        const marked = (name) => [...document.querySelectorAll(`g.${name}`)].map((group) => group.dataset.node);
        return [marked("is-limiting"), marked("is-held-back"), document.querySelector(".sentence")?.textContent ?? ""];
    }
"""


def test_back_pressure_marks_the_node_that_is_held_back(chromium, going_on):
    folder, _ = going_on
    with served(folder / "run") as url:
        page = opened(chromium, url)

        def is_marked():
            limiting, held_back, sentence = page.evaluate(MARKS)  # of one moment: the run goes on
            return "learn" in limiting and held_back == ["rollout"] and "learn" in sentence

        until(is_marked)
        page.close()


@needs_axe
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_accessible_and_fits(chromium, finished, width, dark):
    with served(finished) as url:
        page = opened(chromium, url, width=width, dark=dark)
        page.wait_for_selector(".u-legend")
        page.wait_for_selector(".status.finished")
        page.locator("summary", has_text="Configuration").click()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == []
        page.close()


def test_several_runs_are_side_by_side(chromium, finished, going_on):
    folder, _ = going_on
    with served(finished, folder / "run") as url:
        page = opened(chromium, url)
        until(lambda: page.locator("article.run").count() == 2)
        # both at one moment: what appears above moves them
        tops = page.eval_on_selector_all("article.run", "runs => runs.map(run => run.getBoundingClientRect().top)")
        assert tops[0] == tops[1]
        until(lambda: page.locator(".u-legend .u-series").count() == 3)  # the axis, and both
        assert page.problems == []
        page.close()


def test_rows_beyond_a_step_that_the_run_was_resumed_at_are_not_drawn(chromium, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    rows = [{"step": step, "charts/episodic_return": step / 1000} for step in (1000, 2000, 3000, 4000, 1500, 2500)]
    (run / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    with served(run) as url:
        page = opened(chromium, url)
        page.wait_for_selector(".u-over")
        page.locator(".u-over").scroll_into_view_if_needed()
        shown = {}
        for place in (0.0, 0.5, 0.99):  # step 1000, between 1500 and 2000, and the last one
            box = page.locator(".u-over").bounding_box()
            page.mouse.move(box["x"] + place * box["width"], box["y"] + box["height"] / 2)
            shown[place] = page.locator(".u-legend .u-value").all_inner_texts()
        assert shown == {0.0: ["1,000", "1"], 0.5: ["1,500", "1.5"], 0.99: ["2,500", "2.5"]}
        assert page.problems == []
        page.close()


def test_workers_are_in_the_order_of_the_run_however_late_they_come(chromium, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    frame = FrameReader(run).first()[-1]
    [worker] = list(frame.workers.values())[:1]
    file = FrameFile(run)
    with served(run) as url:
        page = opened(chromium, url)
        for names in (["main", "worker 1"], ["main", "worker 0", "worker 1", "evaluator 0"]):
            file.write(msgspec.structs.replace(frame, workers=dict.fromkeys(names, worker)))
            until(lambda names=names: page.locator(".strips .name").all_inner_texts() == names)
        page.close()
    file.close()


def test_a_finished_run_says_why_it_ended(chromium, finished):
    with served(finished) as url:
        page = opened(chromium, url)
        page.wait_for_selector(".status.finished")
        assert page.locator(".status").inner_text() == "finished: updates=20"
        assert count(fact(page, "updates")) == 20
        page.close()


def test_hostile_names_are_text(chromium, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = msgspec.json.decode((run / "config.json").read_bytes(), type=RunConfig)
    identity = msgspec.structs.replace(config.identity, env=HOSTILE, algorithm=HOSTILE, deployment=HOSTILE)
    hostile = msgspec.structs.replace(config, identity=identity, versions={HOSTILE: HOSTILE})
    (run / "config.json").write_bytes(msgspec.json.encode(hostile))
    (run / "flow.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="100" onload="window.hacked = 2"><script>window.hacked = 3'
        f"</script><g data-node='{msgspec.json.encode(HOSTILE).decode()[1:5]}'><rect width='9' height='9' x='1' y='1'/></g></svg>"
    )
    (run / "metrics.jsonl").write_bytes(msgspec.json.encode({"step": 1, HOSTILE: 1.0, "charts/wall_s": 2.0}) + b"\n")
    frame = FrameReader(run).first()[-1]
    file = FrameFile(run)
    [node], [channel] = [list(found.values())[:1] for found in (frame.nodes, frame.channels)]
    [worker] = list(frame.workers.values())[:1]
    strange = {"nodes": {HOSTILE: node}, "channels": {HOSTILE: channel}, "workers": {HOSTILE: worker}}
    file.write(msgspec.structs.replace(frame, **strange, bottleneck=HOSTILE, events=[(1.0, HOSTILE)]))
    file.close()
    with served(run) as url:
        page = opened(chromium, url)
        page.wait_for_selector(".status.finished")
        until(lambda: page.locator(".sentence").inner_text() != "")
        assert HOSTILE in page.locator("h2").inner_text()
        assert HOSTILE in page.locator(".events").inner_text()
        assert page.locator(".card h3", has_text="onerror").count() == 1
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script, main iframe").count() == 0
        assert page.problems == []
        page.close()


def test_a_report_is_the_page_without_a_server(chromium, finished, tmp_path):
    out = tmp_path / "the report.html"
    assert (
        cli_harness.in_process(f"report {shlex.quote(str(finished))} --out {shlex.quote(str(out))}", cwd=tmp_path).code
        == 0
    )
    page = opened(chromium, out.as_uri())
    page.wait_for_selector(".status.finished")
    page.wait_for_selector("g[data-node='learn'] .bar")
    page.wait_for_selector(".u-legend")
    assert count(fact(page, "updates")) == 20
    if AXE.exists():
        assert violations(page) == []
    for menu, choice in (("metric", "losses/entropy"), ("axis", "charts/wall_s")):
        page.select_option(f"#{menu}", choice)
        page.wait_for_selector(f".plot[data-made*='{choice}']")
    assert page.problems == []
    page.close()


def test_a_run_that_cannot_be_read_is_told_beside_those_that_can(chromium, finished, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(finished, broken)
    with served(broken, finished) as url:
        (broken / "config.json").write_text("{")
        page = opened(chromium, url)
        page.wait_for_selector(".status.finished")
        assert "broken" in page.locator(".unread .notice").inner_text()
        page.close()


def test_runs_whose_directories_have_the_same_name_are_told_apart(chromium, finished, tmp_path):
    for trial in ("a", "b"):
        shutil.copytree(finished, tmp_path / trial / "seed-0")
    (tmp_path / "report.html").write_text(report_of([tmp_path / "a" / "seed-0", tmp_path / "b" / "seed-0"]))
    page = opened(chromium, (tmp_path / "report.html").as_uri())
    page.wait_for_selector(".u-legend")
    labels = [label for label in page.locator(".u-legend .u-label").all_inner_texts() if "seed-0" in label]
    assert len(set(labels)) == 2
    page.close()


def test_a_hostile_report_stays_text(chromium, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    name = "</script><script>window.hacked = 1</script>"
    (run / "metrics.jsonl").write_bytes(msgspec.json.encode({"step": 1, name: 1.0}) + b"\n")
    (tmp_path / "report.html").write_text(report_of([run]))
    page = opened(chromium, (tmp_path / "report.html").as_uri())
    page.wait_for_selector(".status.finished")
    assert page.locator("#metric option", has_text="hacked").inner_text() == name
    assert page.evaluate("window.hacked") is None
    assert page.problems == []
    page.close()


def test_a_lost_server_is_said(chromium, finished):
    with served(finished) as url:
        page = opened(chromium, url)
        page.wait_for_selector(".status.finished")
    notice = page.locator(".notice:not([hidden])")  # before that, it may say that it is drawn slowly
    until(lambda: "last news" in notice.inner_text())
    page.close()
