"""A model card shows the names of a run as text, whatever they are."""

import msgspec
import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from support.runs.fakes import IDENTITY, SETTINGS

from levada.flow.items import Episode
from levada.hub.card import MOST_CHARS, MOST_ROWS, Card
from levada.rl.acting.evaluation import Evaluation
from levada.run.identity import Setting
from levada.run.storage.config import RunConfig
from levada.run.summary import Summary

HOSTILE = [
    "`code` ```",
    "a | b",
    "a \\| b \\",
    "<script>alert(1)</script>",
    "![x](https://example.org/x.png) [y](javascript:z)",
    "https://example.org www.example.org @user",
    "line\n\n# heading\n---\nlibrary_name: other\n---\n",
    "---\nlicense: mit\n---",
    "red \x1b[31m, right \u202e, lone \udcff, null \0",
    "': - {a: *b} # %TAG !!python/object/apply:os.system [id]",
    "*bold* _emphasis_ ~~struck~~ &lt; &#60;",
    "| | |\n|---|---|",
    "",
    "ü 漢字 🎈",
    "x" * 100_000,
]  # fmt: skip


def card(name="ppo", **changes):
    """A card of a run whose names are all this one."""
    identity = msgspec.structs.replace(
        IDENTITY,
        algorithm=name,
        env=name,
        deployment=name,
        flow_hash=name,
        precision=name,
        device=name,
        machine={name: name},
    )
    config = RunConfig(
        identity=identity, versions={"levada": name, name: name, "torch": None},
        settings={**SETTINGS, name: Setting({name: [name]}, "argument"), "other": Setting(name, "config")},
    )  # fmt: skip
    summary = Summary(
        **msgspec.structs.asdict(identity), stopped_by=name, env_steps=30, updates=2, episodes=1, wall_s=1.0, startup_s=0.5,
        steps_per_s=None, return_mean_100=1.0, solved_at_s=None, solved_at_steps=None, lag={}, ledger={}, bottleneck="",
        params_sha256=name,
    )  # fmt: skip
    episodes = (Episode(1.0, 5), Episode(2.0, 5))
    fields = {
        "repo_id": "user/name", "config": config, "summary": summary, "seed": 0, "has_several": True, "files": (),
        "evaluations": {name: Evaluation(episodes, 2, deterministic=True)}, "condition": None,
    }  # fmt: skip
    return Card(**{**fields, **changes})


def tokens(text):
    """Everything in a document, as a reader with HTML and tables sees it."""
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("changes", [{}, {"evaluations": {}, "condition": "trust"}], ids=["evaluated", "not evaluated"])
def test_names_are_shown_as_text(name, changes):
    text = card(name, **changes).text()
    expected, found = card("ppo", **changes).text(), list(tokens(ModelCard(text).text))
    plain = {"code_inline", "text"}
    usual = [token.type for token in tokens(ModelCard(expected).text) if token.type not in plain]
    assert [token.type for token in found if token.type not in plain] == usual
    assert "html_inline" not in usual
    assert "html_block" not in usual
    links = {token.attrs["href"] for token in found if token.type == "link_open"}
    assert links <= {"#configuration"}
    shown = "".join(token.content for token in found if token.type in plain)
    assert name[:MOST_CHARS].split()[:1] == [] or name.split()[0][:3].strip("\x1b") in shown
    assert all(character.isprintable() or character == "\n" for character in text)
    assert len(text) < 20_000


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_not_change_the_metadata(name):
    text = card(name).text()
    data = yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n"))
    assert data.keys() == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert data["library_name"] == "levada"
    assert all(":" not in tag and len(tag) <= 60 for tag in data["tags"])
    read = ModelCard(text).data
    assert read.model_name == "name"
    assert [result.metric_value for result in read.eval_results] == ["1.50 +/- 0.50"]
    assert len(read.eval_results[0].dataset_name) <= MOST_CHARS + 3


@pytest.mark.parametrize("returns", [(float("nan"),), (float("inf"), 1.0), (1e308, 1e308)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the mean of such numbers
def test_a_return_that_is_no_number_is_not_in_the_metadata(returns):
    evaluation = Evaluation(tuple(Episode(value, 1) for value in returns), 2, deterministic=True)
    text = card(evaluations={"policy": evaluation}).text()
    assert "model-index" not in text
    assert "| `policy` | " in text


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.891, "1234567.89"), (-0.00012345, "-0.000123"), (1e12, "1e+12"), (0.0, "0.00")]
)
def test_returns_of_any_size(value, shown):
    evaluation = Evaluation((Episode(value, 1),), 2, deterministic=False)
    text = card(evaluations={"policy": evaluation}).text()
    assert f"value: {shown} +/- 0.00" in text
    assert "sampled actions" in text


def test_many_settings_are_cut():
    config = msgspec.structs.replace(
        card().config, settings={f"s{n}": Setting(n, "default") for n in range(MOST_ROWS + 7)}
    )
    text = card(config=config).text()
    assert "`s299`" in text
    assert "`s300`" not in text
    assert "7 more settings: see config.json." in text


def test_what_a_run_shows_and_where_it_lies_is_not_in_the_table():
    config = msgspec.structs.replace(card().config, settings={"out": Setting("/home/me/runs", "argument")})
    assert "/home/me" not in card(config=config).text()
