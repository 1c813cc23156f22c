"""The server of the page: whom it answers, and what it makes of the files of runs."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec
import pytest
from support.runs import cli as cli_harness
from support.watching import ENV, served

import levada
from levada.run.frames.file import FRAMES
from levada.watch.page_files import page_file
from levada.watch.tail import Tail

PAGE_NBYTES = 150_000
PATIENCE_S = 300


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a run"
    levada.train("ppo", "CartPole-v1", until="updates=6", seed=3, out=out, display="quiet", **cli_harness.TINY_FIELDS)
    return out


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def url(run):
    with served(run) as found:
        yield found


def get(url, path="", *, host=None):
    """Return status, headers and text."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", parts.path + path, headers={"Host": host or parts.netloc})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


class Stream:
    """The messages of the server."""

    def __init__(self, url):
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
        self._connection.request("GET", f"{parts.path}events")
        self.answer = self._connection.getresponse()

    def until(self, kind):
        """Read up to a message of this kind; return all messages by kind."""
        found = {}
        while kind not in found:
            line = self.answer.fp.readline().decode()
            assert line, f"the stream has ended before {kind}: {found.keys()}"
            _, _, data = line.partition("data: ")
            if data:
                message = json.loads(data)
                found[message["kind"]] = message
        return found

    def close(self):
        self._connection.close()
        self.answer.close()


def messages(url, kind="status"):
    stream = Stream(url)
    try:
        return stream.until(kind)
    finally:
        stream.close()


def test_the_page_is_served_with_headers_that_allow_nothing_else(url):
    for name, kind in (
        ("", "text/html"),
        ("page.js", "text/javascript"),
        ("page.css", "text/css"),
        ("flow.css", "text/css"),
    ):
        status, headers, text = get(url, name)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert text == page_file(name or "index.html")
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_the_files_of_the_page_are_small():
    assert sum(len(page_file(name)) for name in ("index.html", "page.js", "page.css", "flow.css")) < PAGE_NBYTES


@pytest.mark.parametrize("path", ["", "/", "/x/", "/x/page.js", "/events", "/x/events", "/../etc/passwd"])
def test_nothing_is_found_without_the_token(url, path):
    parts = urlsplit(url)
    assert get(f"{parts.scheme}://{parts.netloc}{path}")[0] == 404


@pytest.mark.parametrize("name", ["other.js", "%2e%2e/server.py", "../server.py", "config.json", "page.js/"])
def test_only_the_files_of_the_page_are_served(url, name):
    assert get(url, name)[0] == 404


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "attacker.test:80"])
def test_names_of_other_hosts_are_refused(url, host):
    assert get(url, host=host)[0] == 400


def test_it_listens_at_loopback_alone(url):
    port = urlsplit(url).port
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_finished_run_is_sent_whole(url, run):
    found = messages(url)
    summary = json.loads((run / "summary.json").read_bytes())
    assert found["opened"]["identity"]["algorithm"] == "ppo"
    assert found["opened"]["svg"].startswith("<svg")
    assert found["opened"]["settings"]["num_envs"] == {"value": 2, "from": "argument"}
    assert found["rows"]["columns"]["step"] == [float(line["step"]) for line in lines_of(run)]
    assert found["frames"]["frames"][-1]["env_steps"] == summary["env_steps"]
    assert found["status"] == {
        "kind": "status",
        "run": 0,
        "status": "finished",
        "stopped_by": "updates=6",
        "error": None,
    }


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_new_lines_are_sent_when_they_are_complete(copy):
    with served(copy) as url:
        stream = Stream(url)
        stream.until("status")
        with open(copy / "metrics.jsonl", "a") as file:
            file.write('{"step": 1000, "x": 1.5}\n{"step": 1001, ')
            file.flush()
            assert stream.until("rows")["rows"]["columns"] == {"step": [1000.0], "x": [1.5]}
            file.write('"x": 2.5}\n')
            file.flush()
            assert stream.until("rows")["rows"]["columns"] == {"step": [1001.0], "x": [2.5]}
        stream.close()


def test_metrics_that_were_rewound_are_sent_anew(copy):
    with served(copy) as url:
        stream = Stream(url)
        stream.until("status")
        text = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
        (copy / "new").write_text("".join(text[:2]))
        (copy / "new").replace(copy / "metrics.jsonl")
        rows = stream.until("rows")["rows"]
        assert rows["is_first"]
        assert len(rows["columns"]["step"]) == 2
        stream.close()


def test_long_metrics_are_thinned(copy):
    with open(copy / "metrics.jsonl", "w") as file:
        file.writelines(f'{{"step": {number}}}\n' for number in range(100_001))
    with served(copy) as url:
        steps = messages(url)["rows"]["columns"]["step"]
    assert 1000 <= len(steps) <= 2001
    assert steps[0] == 0
    assert steps[-1] == 100_000
    assert {after - before for before, after in pairwise(steps[:-1])} == {51.0}


DAMAGE = {
    "frames.bin": [b"", b"levada fr", b"\xff" * 1000, b"levada frames 1\n\xff\xff\xff\x7f\0\0\0\0", None],
    "metrics.jsonl": [
        b"",
        b"\xff\n" * 10,
        b"[1]\n",
        b'{"step": "x"}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (3 << 20),
        None,
    ],
    "flow.svg": [b"", b"\xff", b"<svg", b"<!DOCTYPE x>", None],
    "summary.json": [b"", b"{", b"[]", b"\xff"],
    "frames.old.bin": [b"", b"\xff" * 100],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, several in DAMAGE.items() for data in several])
def test_damaged_files_never_break_it(copy, name, data):
    if data is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(data)
    tail = Tail(copy, 0)
    try:
        found = {message.__struct_config__.tag: message for message in tail.messages()}
        assert found["opened"].identity.env == "CartPole-v1"
        assert found["status"].status == "finished"
        assert list(tail.messages()) == []
        msgspec.json.encode(list(found.values()))
    finally:
        tail.close()


@pytest.mark.parametrize("name", ["config.json", ""])
def test_a_run_that_is_gone_or_damaged_is_said(copy, name):
    if name:
        (copy / name).write_bytes(b"{")
    else:
        shutil.rmtree(copy)
    with served(copy) as url:
        found = messages(url, "unreadable")["unreadable"]
    assert found["name"].endswith("run")
    assert "config.json" in found["why"] or "no run" in found["why"]


def test_a_run_may_be_deleted_while_it_is_watched(copy):
    with served(copy) as url:
        stream = Stream(url)
        stream.until("status")
        shutil.rmtree(copy)
        assert stream.until("status")["status"]["status"] == "cut off"
        stream.close()


def test_a_failed_run_shows_the_end_of_its_traceback(copy):
    (copy / "summary.json").unlink()
    (copy / "error.txt").write_text("\n".join(f"line {number}" for number in range(100)))
    with served(copy) as url:
        found = messages(url)["status"]
    assert found["status"] == "failed"
    assert found["error"].splitlines() == [f"line {number}" for number in range(88, 100)]


def test_files_that_lead_elsewhere_are_not_followed(copy, tmp_path):
    (tmp_path / "secret").write_text('{"step": 1, "secret": 2}\n')
    for name in ("metrics.jsonl", "flow.svg", FRAMES):
        (copy / name).unlink()
        (copy / name).symlink_to(tmp_path / "secret")
    os.mkfifo(copy / "frames.old.bin")
    with served(copy) as url:
        found = messages(url)
    assert found.keys() == {"opened", "status"}
    assert found["opened"]["svg"] is None


def test_too_many_pages_are_refused(run):
    from levada.watch.server import MOST_PAGES

    with served(run) as url:  # one of its own: it may take a while to notice that the pages of other tests are gone
        streams = [Stream(url) for _ in range(MOST_PAGES)]
        for stream in streams:
            assert stream.until("opened")
        refused = Stream(url)
        assert refused.answer.status == 503
        for stream in [*streams, refused]:
            stream.close()


def test_several_runs_are_told_apart(run, copy):
    with served(run, copy) as url:
        stream = Stream(url)
        seen = set()
        while seen != {0, 1}:
            seen.add(stream.until("opened")["opened"]["run"])
        stream.close()


def test_a_port_in_use_is_a_users_mistake(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "levada.cli", "watch", str(run), "--port", str(port)]
        done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == f"levada: cannot listen at 127.0.0.1, port {port}: Address already in use"


def test_runs_that_have_ended_take_no_files_and_little_time(run, monkeypatch):
    monkeypatch.setattr("levada.watch.tail.ENDED_S", 3600.0)  # reading them may take longer than it is
    tails = [Tail(run, number) for number in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    for tail in tails:
        assert [type(message).__name__ for message in tail.messages()] == ["Opened", "Rows", "Frames", "Changed"]
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not any(tail.is_due() for tail in tails)
    assert not any(list(tail.messages()) for tail in tails)


def test_a_run_that_is_resumed_is_read_on(copy):
    tail = Tail(copy, 0)
    list(tail.messages())
    levada.resume(copy, until="updates=8", display="quiet")
    then = {type(message).__name__: message for message in tail.messages()}
    assert set(then) == {"Rows", "Frames"}
    assert then["Rows"].is_first  # resuming writes the file anew
    assert len(then["Rows"].columns["step"]) == 8
    tail.close()


def test_another_run_in_the_same_directory_is_sent_whole(copy, run):
    """Its files may have the inodes of those before."""
    tail = Tail(copy, 0)
    assert "Opened" in {type(message).__name__ for message in tail.messages()}
    for path in sorted(run.iterdir()):
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes() * (2 if path.name == "metrics.jsonl" else 1))
    then = {type(message).__name__: message for message in tail.messages()}
    assert set(then) == {"Opened", "Rows", "Frames", "Changed"}
    assert then["Rows"].is_first
    tail.close()
