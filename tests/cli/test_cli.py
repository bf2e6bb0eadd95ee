"""The command line: what it prints, its exit codes, and that a user's mistake never ends in a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import undrift as ud
from processes import LIMIT, started, wait_until
from undrift.cli import app, example
from undrift.explain import page
from undrift.reporting.record import TIMES
from undrift.simulation import progress
from undrift.storage.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
QUICK = ("-m", "softmax", "--clients", "10", "--rounds", "3", "--set", "run.cohort=2", "--set", "local.lr=0.5")
Undrift = Callable[..., Result]


@pytest.fixture
def undrift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undrift:
    """Runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


def refused(result: Result, message: str, code: int = 2) -> None:
    assert result.exit_code == code
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("undrift: error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


UNDRIFT = (sys.executable, "-m", "undrift")


# run


def test_run(undrift: Undrift) -> None:
    result = undrift("run", "-a", "fedhbm", *QUICK)
    assert result.exit_code == 0
    assert not result.stderr
    assert "FedHBM on digits" in result.stdout
    assert re.search(r"Engine +batched \(clients train together, up to \d+ at a time\)", result.stdout)
    for heading in (
        "Rounds +3",
        "Final accuracy +[0-9.]+.%",
        "Final test loss +",
        "Traffic +[0-9.]+.kB",
        "Training time +.*s",
    ):
        assert re.search(heading, result.stdout), heading
    assert "run: runs/fedhbm-digits-1\nreport: runs/fedhbm-digits-1/report.html\n" in result.stdout
    assert "<html" in Path("runs/fedhbm-digits-1/report.html").read_text(encoding="utf-8")
    assert "\x1b" not in result.stdout, "colours are for terminals"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_machine_without_jinja2_trains_all_the_same(
    as_json: bool, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = undrift("run", "-a", "fedavg", *QUICK, *(["--json"] if as_json else []))
    assert result.exit_code == 0
    assert result.stderr.startswith("undrift: no report, as jinja2")
    if as_json:
        assert json.loads(result.stdout)["report"] is None
    else:
        assert "FedAvg on digits" in result.stdout


def test_runs_are_numbered(undrift: Undrift) -> None:
    for number in (1, 2):
        assert f"run: runs/fedavg-digits-{number}\n" in undrift("run", "-a", "fedavg", *QUICK).stdout


def test_run_is_simulate(undrift: Undrift) -> None:
    """File, short options and settings together give what the same arguments give in Python."""
    Path("c.toml").write_text(
        "[algorithm]\nname = 'fedprox'\nmu = 5.0\n"
        "[data]\npartition = 'iid'\nclients = 10\n[model]\nname = 'cnn'\n"
        "[local]\nlr = 0.5\nepochs = 2\n[run]\ncohort = 2\nrounds = 9\nseed = 1\n"
    )
    result = undrift(
        *("run", "c.toml", "-m", "softmax", "--partition", "classes:2", "--rounds", "3", "--seed", "3"),
        *("--set", "algorithm.mu=0.1", "--set", "local.batch_size=full", "--out", "x", "--json"),
    )
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    expected = ud.simulate(
        ud.algorithms.FedProx(mu=0.1),
        "softmax",
        ud.data.load("digits", "classes:2", 10, 3),
        rounds=3,
        cohort=2,
        epochs=2,
        lr=0.5,
        batch_size=None,
        seed=3,
    )
    history = expected.history
    assert summary["accuracy"] == history["accuracy"].iloc[-1]
    assert summary["loss"] == history["loss"].iloc[-1]
    assert summary["bytes_up"] == history["bytes_up"].sum()
    assert summary["label"] == "FedProx(mu=0.1)"
    assert (summary["rounds"], summary["seed"], summary["diverged"]) == (3, 3, False)
    assert summary["engine_reason"]
    assert (summary["out"], summary["report"]) == ("x", str(Path("x", "report.html")))
    assert RunDirectory.open("x").config["algorithm"] == {"name": "fedprox", "options": {"mu": 0.1}}


def test_an_algorithm_on_the_command_line_replaces_the_section(undrift: Undrift) -> None:
    Path("c.toml").write_text("[algorithm]\nname = 'fedprox'\nmu = 5.0\n")
    assert undrift("run", "c.toml", "-a", "fedavg", *QUICK, "--out", "x").exit_code == 0
    assert RunDirectory.open("x").config["algorithm"] == {"name": "fedavg", "options": {}}


def test_divergence_fails_with_what_there_is(undrift: Undrift) -> None:
    result = undrift(
        "run", "-a", "fedavg", *QUICK, "--set", "local.lr=1e18", "--set", "local.weight_decay=1e18", "--out", "x"
    )
    refused(result, "diverged in round", code=1)
    assert "FedAvg (diverged) on digits" in result.stdout
    assert Path("x/report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-a", "fedhb"), "unknown algorithm 'fedhb'; did you mean 'fedhbm'?"),
        (("-a", "fedhbm", "-d", "digit"), "did you mean 'digits'?"),
        (("-a", "fedhbm", "-m", "softmx"), "did you mean 'softmax'?"),
        (("-a", "fedhbm", "--partition", "class:2"), "did you mean 'classes'?"),
        (("-a", "fedhbm", "--set", "local.lrr=1"), "unknown key 'local.lrr'; did you mean 'local.lr'?"),
        (("-a", "fedhbm", "--set", "lr=1"), "unknown key 'lr'; did you mean 'local.lr' or 'server.lr'?"),
        (("-a", "fedhbm", "--set", "local.lr=fast"), "local.lr must be a number or \"auto\", got 'fast'"),
        (("-a", "fedhbm", "--rounds", "0"), "rounds must be at least 1, got 0"),
        (("-a", "fedhbm", "--rounds", "many"), "'many' is not a valid integer"),
        (("-a", "fedhbm", "--clients", "0"), "clients must be"),
        (("-a", "fedhbm(beta=-1)"), "beta must be at least 0, got -1"),
        (("-a", "fedexp", "--set", "server.lr=2"), "server_lr must be 1, got 2"),
        (("-d", "digits"), "no algorithm is named"),
        (("nowhere.toml",), "no configuration file 'nowhere.toml'"),
        (("-a", "fedhbm", "-d", "cifar10"), "undrift data get cifar10"),
        (("--bogus",), "--bogus"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], message: str, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDRIFT_CACHE", "empty")
    refused(undrift("run", *arguments), message)
    assert not Path("runs").exists()


def test_the_learning_rate_has_an_option(undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK[:-2], "--lr", "0.25", "--out", "x")
    assert RunDirectory.open("x").config["options"]["lr"] == 0.25
    refused(undrift("run", "-a", "fedavg", "--learning-rate", "0.1"), "did you mean --lr?")
    refused(undrift("run", "-a", "fedavg", "--set", "learning_rate=0.1"), "did you mean 'local.lr'?")
    refused(undrift("run", "-a", "fedavg", "--set", "server.learning_rate=0.1"), "did you mean 'local.lr'?")


def test_a_directory_that_is_taken(undrift: Undrift) -> None:
    Path("full").mkdir()
    Path("full/mine.txt").touch()
    refused(undrift("run", "-a", "fedavg", *QUICK, "--out", "full"), "holds no run; choose another directory")


def test_a_second_run_in_the_same_directory(undrift: Undrift) -> None:
    run = ("run", "-a", "fedavg", *QUICK, "--out", "x", "--json")
    undrift(*run)
    refused(undrift(*run), "holds a run already: resume=True (--resume) continues it, overwrite=True (--overwrite)")
    assert json.loads(undrift(*run, "--resume", "--rounds", "4").stdout)["rounds"] == 4
    refused(undrift(*run, "--resume", "--seed", "5"), "x was begun with seed=0, not 5")
    assert json.loads(undrift(*run, "--overwrite", "--seed", "5").stdout)["rounds"] == 3
    refused(undrift(*run, "--overwrite", "--resume"), "give overwrite=True or resume=True, not both")
    refused(undrift("run", "-a", "fedavg", *QUICK, "--resume"), "--resume needs the directory of a run; give --out DIR")
    refused(undrift("run", "--out", "x", "--overwrite"), "are for one experiment; give its settings")


# The example


def test_example(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    original = example.compare_both
    monkeypatch.setattr(example, "compare_both", lambda out: original(out, rounds=2))
    result = undrift("run")
    assert result.exit_code == 0
    assert example.ABOUT in result.stdout
    for label in ("FedAvg", "FedHBM"):
        assert re.search(rf"{label} +3 +[0-9.]+.±.[0-9.]+.%", result.stdout)
    assert "FedHBM ended at" in result.stdout
    page = Path("runs/demo-1/report.html").read_text(encoding="utf-8")
    assert "FedAvg" in page
    assert "FedHBM" in page
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page), "the page needs no network"
    settings = [record.config for record in ud.Comparison.from_directories(["runs/demo-1"]).records]
    assert {config["options"]["seed"] for config in settings} == {0, 1, 2}
    assert len({json.dumps(config["options"] | {"seed": 0}) for config in settings}) == 1, "both have equal settings"
    assert {json.dumps(config["algorithm"]["options"]) for config in settings} == {
        json.dumps(kind().options()) for kind in (ud.algorithms.FedAvg, ud.algorithms.FedHBM)
    }


def test_example_as_json(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    original = example.compare_both
    monkeypatch.setattr(example, "compare_both", lambda out: original(out, rounds=1))
    result = undrift("run", "--json", "--out", "here")
    assert [row["label"] for row in json.loads(result.stdout)["table"]] == ["FedAvg", "FedHBM"]
    assert Path("here/report.html").exists()


# compare


def test_compare(undrift: Undrift) -> None:
    result = undrift("compare", "-a", "fedavg,fedprox(mu=0.1),fedprox(mu=1)", *QUICK, "--seeds", "2")
    assert result.exit_code == 0
    assert not result.stderr, "no bar where there is no terminal"
    for label in ("FedAvg", "FedProx(mu=0.1)", "FedProx(mu=1)"):
        assert re.search(rf"^{re.escape(label)} +2 ", result.stdout, re.MULTILINE)
    assert re.search(r"(ended|level)", result.stdout)
    assert re.search(r"^Significance: .*McNemar’s\s+exact", result.stdout, re.MULTILINE | re.DOTALL)
    assert "runs: runs/compare-digits-1\nreport: runs/compare-digits-1/report.html\n" in result.stdout
    homes = {str(path.parent) for path in Path("runs/compare-digits-1").rglob("config.json")}
    assert homes == {
        f"runs/compare-digits-1/{name}/seed-{seed}"
        for name in ("fedavg", "fedprox-mu-0.1", "fedprox-mu-1")
        for seed in (0, 1)
    }


def test_compare_uses_the_same_data_for_all_and_new_data_for_every_seed(undrift: Undrift) -> None:
    assert undrift(
        "compare", "-a", "fedavg,fedhbm", *QUICK, "--partition", "dirichlet:1", "--seeds", "3,5", "--out", "x"
    )
    configs = [RunDirectory.open(path.parent).config for path in Path("x").rglob("config.json")]
    assert sorted((c["algorithm"]["name"], c["options"]["seed"], c["data"]["seed"]) for c in configs) == [
        (name, seed, seed) for name in ("fedavg", "fedhbm") for seed in (3, 5)
    ]
    assert {(c["data"]["partition"], c["data"]["clients"]) for c in configs} == {("dirichlet:1", 10)}


def test_compare_counts_seeds_from_the_configured_one(undrift: Undrift) -> None:
    result = undrift("compare", "-a", "fedavg", *QUICK, "--seeds", "2", "--set", "run.seed=4", "--out", "x")
    assert result.exit_code == 0
    assert sorted(path.parent.name for path in Path("x").rglob("config.json")) == ["seed-4", "seed-5"]


def test_compare_as_json(undrift: Undrift) -> None:
    result = undrift("compare", "-a", "fedavg,scaffold", *QUICK, "--json", "--out", "x")
    content = json.loads(result.stdout)
    assert [row["label"] for row in content["table"]] == ["FedAvg", "SCAFFOLD"]
    assert content["table"][0]["accuracy_std"] is None, "one seed has no spread"
    assert content["table"][1]["traffic"] == 2 * content["table"][0]["traffic"]
    assert "the spread over seeds is unknown" in content["headline"]
    (pair,) = content["significance"]
    assert (pair["label"], pair["other"], pair["decided_by"]) == ("FedAvg", "SCAFFOLD", "test samples")
    assert 0 <= pair["mcnemar_p"] <= 1
    assert pair["t_p"] is None, "one seed has no spread"
    assert content["target"] == pytest.approx(content["table"][0]["accuracy"])
    assert (content["out"], content["report"]) == ("x", str(Path("x", "report.html")))


def test_compare_goes_on_where_it_was(undrift: Undrift) -> None:
    arguments = ("compare", "-a", "fedavg", *QUICK, "--out", "x", "--json")
    first = json.loads(undrift(*arguments).stdout)
    assert json.loads(undrift(*arguments).stdout) == first
    more = json.loads(undrift(*arguments, "--rounds", "5").stdout)
    assert len(RunDirectory.open("x/fedavg/seed-0").rows()) == 5
    assert more["table"][0]["traffic"] == pytest.approx(first["table"][0]["traffic"] * 5 / 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--set", "local.lr=0.25"), "was begun with lr=0.5, not 0.25"),
        (("-m", "mlp"), "model is not the one"),
        (("--partition", "iid"), "data is not the one"),
    ],
)
def test_compare_refuses_to_go_on_with_something_else(changed: tuple[str, ...], message: str, undrift: Undrift) -> None:
    arguments = ("compare", "-a", "fedavg", *QUICK, "--out", "x")
    assert undrift(*arguments).exit_code == 0
    refused(undrift(*arguments, *changed), message)


def test_compare_goes_on_when_one_diverges(undrift: Undrift) -> None:
    arguments = ("compare", "-a", "fedavg,fedprox(mu=1e18)", *QUICK, "--set", "local.epochs=9")
    result = undrift(*arguments, "--out", "x")
    assert result.exit_code == 0
    assert "FedProx(mu=1e+18) (diverged)" in result.stdout
    refused(
        undrift(*arguments, "--set", "local.lr=1e18", "--set", "local.weight_decay=1e18", "--out", "y"),
        "every run diverged",
        code=1,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "compare needs algorithms"),
        (("-a", ""), "compare needs algorithms"),
        (("-a", "fedavg,fedavg"), "algorithms must differ"),
        (("-a", "fedavg,fedhb"), "did you mean 'fedhbm'?"),
        (("-a", "fedavg", "--seeds", "0"), "--seeds must be at least 1"),
        (("-a", "fedavg", "--seeds", "x"), "--seeds must be a count or a list"),
        (("-a", "fedavg", "--seeds", "1,1"), "different numbers"),
    ],
)
def test_compare_refuses(arguments: tuple[str, ...], message: str, undrift: Undrift) -> None:
    refused(undrift("compare", *arguments), message)


# resume


def test_resume_adds_rounds(undrift: Undrift) -> None:
    undrift("run", "-a", "scaffold", *QUICK, "--out", "x")
    summary = json.loads(undrift("resume", "x", "--rounds", "6", "--json").stdout)
    undrift("run", "-a", "scaffold", *QUICK, "--rounds", "6", "--out", "y")
    whole = [row | dict.fromkeys(TIMES, 0) for row in RunDirectory.open("y").rows()]
    assert [row | dict.fromkeys(TIMES, 0) for row in RunDirectory.open("x").rows()] == whole
    assert summary["rounds"] == 6
    assert summary["accuracy"] == whole[-1]["accuracy"]
    assert "as asked" not in summary["engine_reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "is not a run directory"),
        (("x", "--rounds", "2"), "has 3 rounds already"),
        (("x", "--rounds", "0"), "0 is not in the range"),
        ((), "Missing argument 'DIR'"),
    ],
)
def test_resume_refuses(arguments: tuple[str, ...], message: str, undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK, "--out", "x")
    refused(undrift("resume", *arguments), message)


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_resume_continues_what_a_signal_saved(number: int, tmp_path: Path, undrift: Undrift) -> None:
    rounds = tmp_path / "x" / "rounds.jsonl"
    endless = ("--rounds", "100000", "--set", "run.engine=batched")  # `auto` would compile so long a run
    with started([*UNDRIFT, "run", "-a", "fedhbm", *QUICK, *endless, "--out", "x"], cwd=tmp_path) as running:
        wait_until(lambda: rounds.exists() and rounds.read_text().count("\n") > 3, running)
        running.send_signal(number)
        out, err = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + number
    assert not out
    told = err.splitlines(keepends=True)[-1]  # after lines on progress, on a slow machine
    match = re.fullmatch(r"undrift: interrupted after round (\d+); resume with: undrift resume x\n", told)
    assert match, err
    done = int(match[1])
    assert json.loads(undrift("resume", "x", "--rounds", str(done + 2), "--json").stdout)["rounds"] == done + 2


def test_interrupted_comparisons_say_how_to_resume(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ud, "compare", interrupted)
    result = undrift("compare", "-a", "fedavg", "--out", "x")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "undrift: interrupted; resume with the same command and --out x\n"


# report


def test_report(undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK, "--out", "a")
    undrift("run", "-a", "fedhbm", *QUICK, "--out", "b")
    result = undrift("report", "a", "b", "-o", "pages/both.html")
    assert result.exit_code == 0
    assert "report: pages/both.html" in result.stdout
    page = Path("pages/both.html").read_text(encoding="utf-8")
    assert "FedAvg" in page
    assert "FedHBM" in page
    assert "report: a/report.html" in undrift("report", "a").stdout
    assert "report: report.html" in undrift("report", "a", "b").stdout


def test_report_of_a_comparison(undrift: Undrift) -> None:
    """The page that the comparison made: its order, baseline and colours."""
    made = undrift("compare", "-a", "scaffold,fedavg", *QUICK, "--seeds", "2", "--out", "x")
    assert "standard deviation" in made.stdout
    page = Path("x/report.html").read_bytes()
    Path("x/report.html").unlink()
    result = undrift("report", "x")
    assert result.stdout.split(" ended")[0] in made.stdout
    assert "Significance: " in result.stdout
    assert Path("x/report.html").read_bytes() == page
    assert b"2\xc2\xa0methods \xc2\xb7 2\xc2\xa0seeds each" in page
    Path("x/comparison.json").unlink()  # as before the order was kept
    undrift("report", "x")
    assert Path("x/report.html").read_bytes() != page


def test_report_keeps_tasks_apart(undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK, "--out", "a")
    undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "4", "--out", "b")
    result = undrift("report", "a", "b")
    assert "FedAvg ended at" in result.stdout
    assert "FedHBM ended at" in result.stdout
    assert "points" not in result.stdout
    assert result.stdout.count("rounds\n") == 2
    table = ud.Comparison.from_directories(["a", "b"]).table()
    assert list(table.columns[:2]) == ["task", "label"]
    assert table["task"].nunique() == 2


def test_report_tells_like_runs_apart(undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK, "--out", "a")
    undrift("run", "-a", "fedavg", *QUICK, "--set", "local.lr=0.1", "--out", "b")
    result = undrift("report", "a", "b")
    assert "FedAvg (b)" in result.stdout
    assert "FedAvg (a)" in result.stdout


def test_report_keeps_the_target(undrift: Undrift) -> None:
    undrift("run", "-a", "fedavg", *QUICK, "--set", "run.target=0.05", "--out", "a")
    assert "it reached 5.0\u00a0% in" in undrift("report", "a").stdout


def test_report_refuses(undrift: Undrift) -> None:
    Path("other").mkdir()
    Path("other/config.json").write_text("{}")
    refused(undrift("report", "nowhere"), "is not a run directory and holds none")
    refused(undrift("report", "other"), "its config.json is another program's")
    refused(undrift("report"), "Missing argument")


# list, explain, help


def test_list_algorithms(undrift: Undrift) -> None:
    rows = {row["name"]: row for row in json.loads(undrift("list", "algorithms", "--json").stdout)}
    assert list(rows) == list(ud.algorithms.available())
    expected = {
        "name": "scaffold",
        "year": 2020,
        "client_state": 1.0,
        "server_state": 1.0,
        "server_state_per_client": 0.0,
        "down": 2.0,
        "up": 2.0,
        "stateless": False,
        "title": page("scaffold").title,
    }
    assert rows["scaffold"] == rows["scaffold"] | expected
    shown = undrift("list", "algorithms").stdout
    assert re.search(
        r"^scaffold +2020 +1 +1 +2 +2  Every local step .* *\n +between .* global one\. *$", shown, re.MULTILINE
    )
    assert max(map(len, shown.splitlines())) <= 100
    assert re.search(r"^fedvarp +2022 +– +1 \+ N +1 +1 ", shown, re.MULTILINE)


@pytest.mark.parametrize("topic", ["datasets", "models", "partitions", "diagnostics"])
def test_lists(topic: str, undrift: Undrift) -> None:
    rows = json.loads(undrift("list", topic, "--json").stdout)
    assert {"digits", "cnn", "classes", "client_distance"} & {row["name"] for row in rows}
    shown = undrift("list", topic).stdout
    assert all(row["name"] in shown and row["about"] in shown for row in rows)


def test_the_list_of_algorithms_does_not_wait_for_torch() -> None:
    code = "import sys; from undrift.cli import app; app(sys.argv[1:], standalone_mode=False)"
    loaded = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    with started([sys.executable, "-c", loaded + code, "list", "algorithms"]) as running:
        out, _ = running.communicate(timeout=LIMIT)
    assert out.rstrip().endswith("False")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("undrift expl", ["explain"]),
        ("undrift run -a fedh", ["fedhbm"]),
        ("undrift compare -a fedavg,fedpr", ["fedavg,fedprox"]),
        ("undrift run --model lenet", ["lenet", "lenet-bn", "lenet5", "lenet-hsu"]),
        ("undrift data get fa", ["fashion-mnist"]),
        ("undrift data show --partition sh", ["shards"]),
        ("undrift explain scaf", ["scaffold"]),
        ("undrift list mo", ["models"]),
    ],
)
def test_the_shell_completes_names(line: str, offered: list[str]) -> None:
    words = line.split()
    environment = {"_UNDRIFT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], prog_name="undrift", env=environment)
    assert result.stdout.split() == offered


def test_completion_can_be_installed(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    shellingham = pytest.importorskip("shellingham")
    monkeypatch.setattr(shellingham, "detect_shell", lambda *_: ("bash", "/bin/bash"))  # tests may run without one
    assert "_UNDRIFT_COMPLETE=complete_bash" in undrift("--show-completion").stdout


def test_list_refuses(undrift: Undrift) -> None:
    refused(undrift("list", "algorithm"), "'algorithm' is not one of 'algorithms', 'datasets', 'models', 'partitions',")
    refused(undrift("list"), "Missing argument")


def test_explain(undrift: Undrift) -> None:
    shown = undrift("explain", "Fed-HBM").stdout
    for text in (
        "FedHBM\nHeavy-ball momentum",
        "\nPaper\n",
        "  y ← y − η g_i(y) + (β C / J_i)(y − a_i),  C = |S|/N,  J_i local steps  (Eq. 5)\n",
        "\nPitfalls\n",
        "  beta = None         momentum β; 0 is FedAvg.",
    ):
        assert text in shown
    assert re.search("  A client keeps +1 model", shown)
    refused(undrift("explain", "fedhb"), "did you mean 'fedhbm'?")


@pytest.mark.parametrize("command", ["run", "compare", "resume", "report", "list", "explain"])
def test_every_command_has_help_with_an_example(command: str, undrift: Undrift) -> None:
    result = undrift(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+undrift {command} ", result.stdout)
    assert command in undrift("--help").stdout
    assert command in undrift().stdout


def test_no_traceback_in_a_real_shell(tmp_path: Path) -> None:
    with started([*UNDRIFT, "run", "-a", "fedhb"], cwd=tmp_path) as running:
        out, err = running.communicate(timeout=LIMIT)
    assert (running.returncode, out) == (2, "")
    assert err == "undrift: error: unknown algorithm 'fedhb'; did you mean 'fedhbm'?\n"


def test_bugs_keep_their_traceback(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr("undrift.explain.page", broken)
    assert isinstance(undrift("explain", "fedavg").exception, KeyError)


# Progress


class Terminal:
    """A stderr that says it is a terminal, and keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True

    @property
    def plain(self) -> str:
        """What was written, without the codes that colour it and move the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)


def test_one_bar_for_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def run(label: str, rounds: int) -> None:
        with progress.progress_bar(label, 4) as tick:
            for done in range(1, rounds + 1):
                tick(done, {"accuracy": 0.5, "train_loss": 1.0})
            wait_until(lambda: bool(re.search(f"{label}.*accuracy 50.0%", terminal.plain)))  # a thread redraws the bars

    with progress.overall_bar("2 runs", 8):
        run("First", rounds=4)
        run("Second", rounds=1)  # ends early
    last = terminal.plain.rstrip().splitlines()[-1]
    assert "2 runs" in last
    assert "8/8" in last
