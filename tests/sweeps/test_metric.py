"""The metric of trials: of runs that have ended, at checks, and over seeds. Records of trials."""

import os

import pytest
from support.runs.written import begin_run, write_run

from levada.sweeps.errors import SweepError
from levada.sweeps.metric import IN_SUMMARY, Metric, NoMetricError, UnknownMetricError, objective, values_at_checks
from levada.sweeps.record import Record, read_record_of


def test_numbers_of_the_summary():
    assert {"return_mean_100", "solved_at_steps", "wall_s", "env_steps", "efficiency"} <= {*IN_SUMMARY}
    assert not {"seed", "env", "lag", "params_sha256"} & {*IN_SUMMARY}


def test_metrics_of_a_run(tmp_path):
    write_run(tmp_path / "run", [1.0, 3.0], **{"losses/policy": -0.5, "losses/value": None})
    assert Metric("return_mean_100").of(tmp_path / "run") == 3.0
    assert Metric("env_steps").of(tmp_path / "run") == 200.0
    assert Metric("losses/policy").of(tmp_path / "run") == -0.5
    for name, message in {
        "losses/value": "losses/value has no finite value in its metrics.jsonl",
        "loses/policy": "it has no metric loses/policy; did you mean losses/policy?",
        "solved_at_s": "solved_at_s is null in its summary.json",
        "xyz": "it has no metric xyz; it has charts/episodic_return, losses/policy, losses/value",
    }.items():
        with pytest.raises(NoMetricError) as error:
            Metric(name).of(tmp_path / "run")
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "is_unknown"),
    [
        ("charts/unshaped_return", False), ("ppo/charts/episodic_return", False), ("eval/return", False),
        ("charts/episodic_retrun", True), ("eval/retrun", True), ("losses/polcy", True),
    ],
)  # fmt: skip
def test_a_metric_is_unknown_unless_the_run_may_have_ended_too_early(tmp_path, name, is_unknown):
    write_run(tmp_path / "run", [1.0], **{"losses/policy": -0.5})
    with pytest.raises(NoMetricError) as error:
        Metric(name).of(tmp_path / "run")
    assert isinstance(error.value, UnknownMetricError) is is_unknown


def test_a_run_that_cannot_be_read_has_no_metric(tmp_path):
    with pytest.raises(NoMetricError, match="there is no run"):
        Metric("env_steps").of(tmp_path / "run")
    assert Metric("return_mean_100").at_checks(tmp_path / "run", 1000) == []


def test_values_at_checks_are_the_first_after_each_tenth(tmp_path):
    begin_run(tmp_path / "begun")
    assert Metric("return_mean_100").at_checks(tmp_path / "begun", 1000) == []
    write_run(tmp_path / "run", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], every=150)
    assert Metric("return_mean_100").at_checks(tmp_path / "run", 1000) == [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 6.0, 6.0]
    assert Metric("charts/episodic_return").at_checks(tmp_path / "run", 2000) == [2.0, 3.0, 4.0, 6.0, 7.0]
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1200, "charts/epi')  # as of a run that was killed, or is writing
    assert len(Metric("return_mean_100").at_checks(tmp_path / "run", 2000)) == 5


def test_seeds_are_checked_one_after_another():
    curves = {1: [1.0, 2.0], 2: [5.0, 7.0], 3: [9.0]}
    assert values_at_checks({}, curves, (1, 2, 3)) == [1.0, 2.0]
    assert values_at_checks({2: 8.0}, curves, (1, 2, 3)) == [1.0, 2.0]
    assert values_at_checks({1: 3.0}, curves, (1, 2, 3)) == [1.0, 2.0, 4.0, 5.0]
    assert values_at_checks({1: 3.0, 2: 8.0}, curves, (1, 2, 3)) == [1.0, 2.0, 4.0, 5.0, objective([3.0, 8.0, 9.0])]


def test_records_are_read_as_written(tmp_path):
    assert read_record_of(tmp_path / "trial") is None
    record = Record(settings={"a": "1"}, outcome="pruned", values=[0.5])
    record.write(tmp_path / "trial")
    assert read_record_of(tmp_path / "trial") == record
    (tmp_path / "file").write_text("")
    with pytest.raises(SweepError, match=r"file/trial\.json cannot be written"):
        record.write(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"settings": {"a": 1}}', b'{"settings": {}, "outcome": "won"}', b"\xff", b"[" * 100_000,
     b'{"settings": {}, "values": ["\\u001b[31m"]}'],
)  # fmt: skip
def test_damaged_records(tmp_path, text):
    (tmp_path / "trial.json").write_bytes(text)
    with pytest.raises(SweepError, match=r"trial\.json is not the record of a trial") as error:
        read_record_of(tmp_path)
    assert "\x1b" not in str(error.value)


def test_records_that_are_no_files(tmp_path):
    os.symlink("/dev/zero", tmp_path / "trial.json")
    with pytest.raises(SweepError, match=r"trial\.json cannot be read: it is a symbolic link"):
        read_record_of(tmp_path)
