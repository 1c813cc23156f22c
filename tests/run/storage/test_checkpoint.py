"""Checkpoints come back as they were saved, and a torn one is never mistaken for a whole one."""

import json
import os
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from support.runs.fakes import FullDisk, files_below

from levada.run.storage.checkpoint import (
    ARRAYS,
    META,
    REPLAYS,
    REPLAYS_ZIP,
    Checkpoint,
    CheckpointError,
    CheckpointWarning,
    keep_last,
    list_checkpoints,
    load,
    newest,
    save,
)

small = settings(derandomize=True, database=None, deadline=None, max_examples=60)
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
DTYPES = [np.bool_, *INTEGERS, np.float16, np.float32, np.float64, np.complex64]
TINY = {"w": np.array([1.5, -2.5], np.float32)}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
any_arrays = st.dictionaries(
    names,
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    max_size=3,
)


def same(left, right):
    assert set(left) == set(right)
    for name in left:
        a, b = np.asarray(left[name]), right[name]
        assert (a.dtype.newbyteorder("="), a.shape) == (b.dtype, b.shape)
        assert a.astype(b.dtype).tobytes() == b.tobytes()


def steps(directory):
    return [int(path.name) for path in list_checkpoints(directory)]


@small
@given(any_arrays, st.dictionaries(st.text(max_size=3), json_values, max_size=3), st.integers(0, 10**12))
def test_what_is_saved_is_loaded(tmp_path_factory, arrays, meta, step):
    directory = tmp_path_factory.mktemp("run")
    path = save(directory, step, arrays, meta)
    loaded = load(path)
    same(arrays, {**loaded.arrays, **loaded.replays})
    assert (loaded.step, loaded.meta, loaded.path) == (step, meta, path)
    assert path.name == f"{step:09d}"
    replays = [REPLAYS_ZIP] if any(name.startswith(REPLAYS) for name in arrays) else []
    assert sorted(p.name for p in path.iterdir()) == [ARRAYS, META, *replays]


def test_views_are_stored_as_the_numbers_that_they_show(tmp_path):
    base = np.arange(12.0).reshape(3, 4)
    arrays = {
        "transposed": base.T,
        "reversed": base[::-1],
        "strided": base[:, ::2],
        "fortran": np.asfortranarray(base),
        "big": base.astype(">f8"),
        "scalar": base[1, 2],
        "broadcast": np.broadcast_to(base[0], (5, 4)),
    }
    same(arrays, load(save(tmp_path, 1, arrays, {})).arrays)


def test_loaded_arrays_can_be_written_to(tmp_path):
    array = load(save(tmp_path, 1, TINY, {})).arrays["w"]
    array += 1
    assert array.flags.c_contiguous


def test_generator_states_survive(tmp_path):
    generator = np.random.default_rng(5)
    expected = np.random.default_rng(5).random(7)
    loaded = load(save(tmp_path, 1, {}, {"rng": generator.bit_generator.state}))
    restored = np.random.default_rng()
    restored.bit_generator.state = loaded.meta["rng"]
    assert (restored.random(7) == expected).all()


@pytest.mark.parametrize("dtype", ["U3", "O", "complex128", "M8[s]", "i4,i4"])
def test_arrays_that_cannot_be_stored_are_refused(tmp_path, dtype):
    with pytest.raises(CheckpointError, match=r"array 'odd' has dtype .* expected one of bool"):
        save(tmp_path, 1, {"odd": np.zeros(2, dtype)}, {})
    assert files_below(tmp_path) == []


def test_the_name_that_safetensors_keeps_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="call the array something else"):
        save(tmp_path, 1, {"__metadata__": np.zeros(2)}, {})


@pytest.mark.parametrize("meta", [{"a": float("nan")}, {"a": object()}, {"a": np.zeros(2)}, {"a": {1, 2}}])
def test_meta_that_json_cannot_hold_is_refused(tmp_path, meta):
    with pytest.raises(CheckpointError, match=r"meta cannot be written as JSON .*put arrays into `arrays`"):
        save(tmp_path, 1, {}, meta)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("step", [-1, 1.0, True, "3"])
def test_a_step_that_is_no_count_is_refused(tmp_path, step):
    with pytest.raises(CheckpointError, match="expected an integer >= 0"):
        save(tmp_path, step, {}, {})


@pytest.mark.parametrize("name", [ARRAYS, META])
def test_a_checkpoint_torn_anywhere_is_skipped_and_named(tmp_path, name):
    save(tmp_path, 1, TINY, {"a": 1})
    torn = save(tmp_path, 2, TINY, {"a": 2}) / name
    whole = torn.read_bytes()
    for length in range(len(whole)):
        torn.write_bytes(whole[:length])
        with pytest.warns(CheckpointWarning, match="skipped: checkpoint .*000000002 is torn"):
            found = newest(tmp_path)
        assert found is not None
        assert (found.step, found.meta) == (1, {"a": 1})
    torn.write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert newest(tmp_path).step == 2


def test_every_changed_byte_of_the_arrays_is_noticed(tmp_path):
    path = save(tmp_path, 1, TINY, {}) / ARRAYS
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match="does not have the SHA-256"):
            load(path.parent)


@pytest.mark.parametrize("name", [ARRAYS, META])
@pytest.mark.parametrize("content", [b"\0" * 300, None])
def test_blanked_and_missing_files_are_noticed(tmp_path, name, content):
    save(tmp_path, 1, TINY, {})
    path = save(tmp_path, 2, TINY, {}) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="000000002"):
        assert newest(tmp_path).step == 1


def test_nothing_valid_is_none(tmp_path):
    assert newest(tmp_path) is None
    (save(tmp_path, 1, TINY, {}) / META).unlink()
    with pytest.warns(CheckpointWarning):
        assert newest(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(format=99), "has format 99, this levada reads 4"),
        (lambda record: record.pop("arrays_sha256"), "was not written by levada, or was edited"),
    ],
)
def test_other_formats_are_refused(tmp_path, change, message):
    path = save(tmp_path, 1, TINY, {})
    record = json.loads((path / META).read_text())
    change(record)
    (path / META).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=message):
        load(path)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null"])
def test_meta_that_is_no_object_is_refused(tmp_path, content):
    path = save(tmp_path, 1, TINY, {})
    (path / META).write_bytes(content)
    with pytest.raises(CheckpointError, match="was not written by levada"):
        load(path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "num_calls"), [("write", 0), ("write", 1), ("fsync", 0), ("fsync", 1), ("fsync", 2), ("open", 1)]
)
def test_a_full_disk_leaves_the_older_checkpoints_and_nothing_else(tmp_path, monkeypatch, name, num_calls):
    save(tmp_path, 1, TINY, {})
    before = files_below(tmp_path)
    with monkeypatch.context() as patch:
        FullDisk(patch, name, num_calls)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 2, TINY, {})
    assert files_below(tmp_path) == before
    assert newest(tmp_path).step == 1
    save(tmp_path, 2, TINY, {})
    assert newest(tmp_path).step == 2


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, TINY, {})
    assert files_below(tmp_path) == ["checkpoints"]


def test_a_valid_checkpoint_is_not_overwritten(tmp_path):
    save(tmp_path, 1, TINY, {"a": 1})
    with pytest.raises(CheckpointError, match="exists, and is not torn: nothing is overwritten"):
        save(tmp_path, 1, {}, {"a": 2})
    assert newest(tmp_path).meta == {"a": 1}


def test_a_run_directory_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError, match="the run's directory is gone; was it deleted while the run went on"):
        save(tmp_path / "deleted", 1, TINY, {})
    assert not (tmp_path / "deleted").exists()


def test_a_torn_checkpoint_is_replaced(tmp_path):
    (save(tmp_path, 1, TINY, {"a": 1}) / ARRAYS).write_bytes(b"")
    save(tmp_path, 1, {}, {"a": 2})
    assert newest(tmp_path).meta == {"a": 2}


def test_the_last_are_kept_in_the_order_of_numbers(tmp_path):
    for step in (5, 40, 2_000_000_000, 999_999_999, 7):
        save(tmp_path, step, TINY, {})
    keep_last(tmp_path, 2)
    assert steps(tmp_path) == [999_999_999, 2_000_000_000]
    assert newest(tmp_path).step == 2_000_000_000


def test_torn_ones_do_not_count_among_the_kept(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, TINY, {})
    (tmp_path / "checkpoints" / "000000004" / META).write_bytes(b"{")
    (tmp_path / "checkpoints" / "000000003" / ARRAYS).unlink()
    keep_last(tmp_path, 1)
    assert steps(tmp_path) == [2, 3, 4]
    with pytest.warns(CheckpointWarning):
        assert newest(tmp_path).step == 2


def test_what_a_killed_process_left_is_cleared_and_never_read(tmp_path):
    save(tmp_path, 1, TINY, {})
    left = tmp_path / "checkpoints" / ".000000002.77-ab.tmp"
    left.mkdir()
    (left / ARRAYS).write_bytes(b"half")
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    assert newest(tmp_path).step == 1
    keep_last(tmp_path, 3)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000000001", "notes.txt"]


@pytest.mark.parametrize("num", [0, -1, True, 1.5])
def test_at_least_one_is_kept(tmp_path, num):
    with pytest.raises(CheckpointError, match="the newest checkpoint is always kept"):
        keep_last(tmp_path, num)


def test_keeping_where_nothing_was_saved_is_no_error(tmp_path):
    keep_last(tmp_path, 1)
    assert files_below(tmp_path) == []


def test_a_checkpoint_holds_no_code(tmp_path):
    path = save(tmp_path, 1, TINY, {"call": "__import__('os').abort()"})
    data = (path / ARRAYS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + length])["w"]["dtype"] == "F32"
    assert data[8 + length :] == TINY["w"].tobytes()
    assert isinstance(load(path), Checkpoint)


def test_contents_of_replays_are_compressed_and_come_back(tmp_path):
    content = np.zeros((50_000, 8), np.float32)
    content[::7] = np.arange(8)
    arrays = TINY | {"replays/a/0/rows/obs": content, "replays/a/0/rows/é\0%2F": np.asfortranarray(content[:5])}
    path = save(tmp_path, 1, arrays, {})
    assert (path / "replays.zip").stat().st_size < content.nbytes / 10
    found = load(path)
    assert found.arrays.keys() == TINY.keys()
    assert found.arrays.keys() | found.replays.keys() == arrays.keys()
    for name in found.replays:
        np.testing.assert_array_equal(found.replays[name], arrays[name])
    with pytest.raises(KeyError):
        found.replays["replays/b"]
    assert not load(path, replays=False).replays


@pytest.mark.parametrize("harm", ["missing", "shorter", "other bits"])
def test_torn_contents_of_replays_are_noticed(tmp_path, harm):
    for step in (1, 2):
        path = save(tmp_path, step, TINY | {"replays/a/0/rows": np.arange(10_000)}, {})
    zipped = path / "replays.zip"
    data = bytearray(zipped.read_bytes())
    zipped.unlink()
    if harm != "missing":
        data[len(data) // 2] ^= 0xFF
        zipped.write_bytes(data[:-9] if harm == "shorter" else data)
    with pytest.warns(CheckpointWarning, match="torn: replays.zip"):
        found = newest(tmp_path)
    assert found.step == 1
