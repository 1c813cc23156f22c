"""Records of event files."""

import random

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from levada.run.storage.records import record


@pytest.mark.parametrize("num_bytes", [0, 1, 400, 3000])
def test_it_is_that_of_tensorboard(num_bytes, tmp_path):
    data = random.Random(num_bytes).randbytes(num_bytes)
    with (tmp_path / "events").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(data)
        writer.close()
    assert record(data) == (tmp_path / "events").read_bytes()
