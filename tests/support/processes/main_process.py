"""A main process that is started, ended from outside, and must leave nothing behind."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 120.0


class MainProcess:
    """A script in a process; the first line that it prints is the numbers of the processes it has started."""

    def __init__(self, script: str, folder: Path) -> None:
        (folder / "main.py").write_text(script)
        self.temporary = Path(tempfile.mkdtemp())  # a short path: sockets will lie there
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.temporary)}
        command = [sys.executable, folder / "main.py"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.children = [int(pid) for pid in self._process.stdout.readline().split()]

    def end(self, number: int) -> None:
        """By a signal; then nothing may be left of it."""
        self._process.send_signal(number)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        deadline_s = time.monotonic() + LIMIT_S
        while any(map(is_alive, self.children)):
            assert time.monotonic() < deadline_s, "processes outlive the main process"
            time.sleep(0.01)
        while left := list(self.temporary.rglob("*")):
            assert time.monotonic() < deadline_s, f"left behind: {left}"
            time.sleep(0.01)
        self.temporary.rmdir()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
