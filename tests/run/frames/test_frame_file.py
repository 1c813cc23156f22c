"""The file of frames: what is written is read, whatever happens to the file."""

import os

import pytest

from levada.run.frames.file import FRAMES, OLDER, FrameFile, FrameReader
from levada.run.frames.frame import Frame


def frame(number, **values):
    return Frame(
        at_s=float(number), elapsed_s=float(number), wall_s=float(number), env_steps=number, updates=0, episodes=0,
        steps_per_s=0.0, updates_per_s=0.0, return_mean_100=None, nodes={}, channels={}, **values,
    )  # fmt: skip


def numbers(frames):
    return [found.env_steps for found in frames]


def test_a_reader_sees_what_is_added(tmp_path):
    reader = FrameReader(tmp_path)
    assert reader.first() == []
    file = FrameFile(tmp_path)
    file.write(frame(1))
    assert reader.new() == [frame(1)]
    assert reader.new() == []
    file.write(frame(2))
    file.write(frame(3))
    assert numbers(reader.new()) == [2, 3]
    assert numbers(FrameReader(tmp_path).first()) == [1, 2, 3]


def test_a_full_file_takes_the_place_of_the_older_one_and_no_frame_is_missed(tmp_path):
    file = FrameFile(tmp_path, file_nbytes=2000)
    reader = FrameReader(tmp_path)
    seen = numbers(reader.first())
    for number in range(200):
        file.write(frame(number))
        if number % 3 == 0:
            seen += numbers(reader.new())
    seen += numbers(reader.new())
    assert seen == list(range(200))
    assert sum((tmp_path / name).stat().st_size for name in (FRAMES, OLDER)) < 6000
    last = numbers(FrameReader(tmp_path).first())
    assert last == list(range(last[0], 200))
    assert len(last) > 5


def test_a_resumed_run_sets_the_frames_before_aside(tmp_path):
    before = FrameFile(tmp_path)
    before.write(frame(1))
    before.close()
    reader = FrameReader(tmp_path)
    assert numbers(reader.first()) == [1]
    after = FrameFile(tmp_path)
    after.write(frame(2))
    assert numbers(reader.new()) == [2]
    assert numbers(FrameReader(tmp_path).first()) == [1, 2]


def test_a_frame_is_read_when_it_is_complete(tmp_path):
    file = FrameFile(tmp_path)
    file.write(frame(1))
    file.close()
    whole = (tmp_path / FRAMES).read_bytes()
    for size in range(len(whole)):
        (tmp_path / FRAMES).write_bytes(whole[:size])
        assert FrameReader(tmp_path).first() == []
    reader = FrameReader(tmp_path)
    assert reader.first() == []
    with open(tmp_path / FRAMES, "ab") as end:
        end.write(whole[-1:])
    assert reader.new() == [frame(1)]


@pytest.mark.parametrize("place", [0, 16, 18, 20, 24, 40])
def test_nothing_is_read_beyond_damage(tmp_path, place):
    file = FrameFile(tmp_path)
    file.write(frame(1))
    file.write(frame(2))
    file.close()
    data = bytearray((tmp_path / FRAMES).read_bytes())
    data[place] ^= 0xFF
    (tmp_path / FRAMES).write_bytes(data)
    reader = FrameReader(tmp_path)
    assert reader.first() == reader.new() == []


def test_frames_of_another_shape_are_not_read(tmp_path):
    file = FrameFile(tmp_path)
    file.write(frame(-1))  # no count
    file.write(frame(1))
    reader = FrameReader(tmp_path)
    assert reader.first() == []
    assert reader.is_broken


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / FRAMES
    if kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert FrameReader(tmp_path).first() == []
