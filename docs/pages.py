"""Write the pages that follow from code and measurements (algorithms, settings, readings and others): `make docs`."""

from __future__ import annotations

import inspect
import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from undrift import algorithms, data, models, overview
from undrift.algorithms.text import SETTINGS as SETTINGS_WITH_ALGORITHM
from undrift.cli.settings import SETTINGS
from undrift.data.partition import SCHEMES
from undrift.diagnostics import DIAGNOSTICS
from undrift.explain import Page, markdown, page
from undrift.overview import server_sizes, sizes
from undrift.simulation.options import Option

HOME = Path(__file__).parent
ALGORITHMS = HOME / "algorithms"
PARITY = HOME.parent / "tests" / "parity" / "index.json"
ALWAYS = {"lr", "steps", "epochs", "batch_size"}  # settings that every run of `PARITY` has


def index(pages: list[Page]) -> str:
    """The table of all algorithms."""
    return "\n".join(
        [
            "# Algorithms",
            "",
            "Sizes are in models, measured with the defaults on a model of four equal layers: what a client keeps,",
            "what the server keeps besides the model (N: for every client), what a client receives and sends in a",
            "round, the gradients of a local step, and further passes over a client's samples. A message is",
            "self-contained: an exchange before training sends the model as well. [Agreement](../agreement.md) says",
            "whose code computes the same.",
            "",
            *table("algorithm", "in a sentence", "client", "server", "down / up", "gradients", "passes"),
            *map(row_of_algorithm, pages),
            "",
        ]
    )


def row_of_algorithm(page: Page) -> str:
    cost = page.cost
    return row(
        f"[{page.label}]({page.name}.md)",
        page.title,
        "–" if cost.stateless else sizes(cost.client),
        server_sizes(cost.server, cost.server_per_client),
        f"{sizes(cost.down)} / {sizes(cost.up)}",
        sizes(cost.gradients),
        sizes(cost.passes),
    )


def settings() -> str:
    """The page of all settings, by section."""
    lines = [
        "# Settings",
        "",
        "Settings of an experiment are keys of a TOML file (`undrift run CONFIG.toml`), by section;",
        "`--set section.key=value` overrides them. In Python they are arguments of `ud.simulate`, those of `[data]` of",
        "`ud.data.load`. The section `[algorithm]` has a `name` and the options of the",
        '[algorithm](algorithms/README.md); `algorithm = "fedprox(mu=0.1)"` says the same in one line.',
        "",
        f"Settings of a run may stand among the options: {listed(SETTINGS_WITH_ALGORITHM)}.",
        "They hold for this algorithm only, and win over all others. So it is wherever an algorithm is named; should",
        "an algorithm have an option of that name, it is the option.",
        "",
        "The section `[compare]` has what only a comparison has:",
        "",
        "```toml",
        "[compare]                                    # undrift compare CONFIG.toml",
        'algorithms = ["fedavg", "fedadam(server_lr=0.01, lr=0.03)", "feddyn(alpha=0.1)"]',
        "seeds = 3                                    # or a list of them: [0, 1, 7]",
        'targets = [0.6, "90%"]                       # rounds to them are counted; shares are of the centralised one',
        "last_k = 100                                 # rounds that the mean at the end is over",
        'centralised = true                           # or "centralised(epochs=150, momentum=0.9, lr_decay=cosine)"',
        "",
        "[local]",
        "lr = 0.1                                     # of all others",
        "```",
        "",
        "`algorithms` may also be a table of labels: `[compare.algorithms]` with lines such as",
        '`Tuned = "fedadam(server_lr=0.01)"`. In a comparison all algorithms weight clients by their samples; with',
        '`server.weighting = "paper"` each does what its paper does, as in a single run.',
        "",
        "`auto` stands for the data set's own setting, from the table at the end, or else for the value given here. It",
        "is decided before the first round, from the data alone, printed, and stored with the run. Words in quotes are",
        "used in a file; in Python, `None` says the same.",
        "",
    ]
    for section, options in SETTINGS.items():
        lines += [f"## [{section}]", "", *table("setting", "argument", "default", "meaning", "value")]
        lines += [row_of_setting(option) for option in options.values()]
        lines.append("")
    lines += ["## Settings of the data sets", "", *table("data set", "partition", "settings")]
    lines += [row_of_data_set(name) for name in data.available()]
    return "\n".join([*lines, ""])


def agreement(pages: list[Page]) -> str:
    """The page of what other people's code computes, from the index of the tests."""
    index = json.loads(PARITY.read_text("utf-8"))
    sources, runs = index["sources"], index["cases"]
    linked = {each.name: f"[{each.label}](algorithms/{each.name}.md)" for each in pages}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}  # by algorithm and source
    for name, run in runs.items():
        groups.setdefault((run["algorithm"], name.split(".")[0]), []).append(run)
    compared = {algorithm for algorithm, _ in groups}
    return "\n".join(
        [
            "# Agreement with other code",
            "",
            f"A test, `pytest tests/parity`, repeats {len(runs)} runs of other people's code: a small network, six",
            "clients, all or half of them in each of five rounds. It was driven as published, but for the device,",
            "double precision, and the start or bias of adaptive servers where that is named below. The model must be",
            "theirs after every round, to 1e-12 of the way it has moved, or to 1e-6 where their code has single",
            "precision inside; so with both engines, of which the sequential one goes two rounds. `tests/parity` holds",
            "the numbers.",
            "",
            *table("code", "by", "version", "runs"),
            *(row_of_source(key, source, list(runs)) for key, source in sources.items()),
            "",
            "## Agrees with",
            "",
            *table("algorithm", "code", "runs", "options and settings besides the rate", "to"),
            *(
                row_of_agreement(linked[algorithm], sources[key]["name"], group)
                for (algorithm, key), group in sorted(groups.items())
            ),
            "",
            "## Differs, and who is right",
            "",
            "With a line of theirs mended, the numbers agree to rounding. Conventions are no errors.",
            "",
            *table("algorithm", "code", "what it does", "who is right"),
            *(
                row(linked[each["algorithm"]], sources[each["source"]]["name"], each["theirs"], each["right"])
                for each in sorted(index["differences"], key=lambda each: each["algorithm"])
            ),
            "",
            "## Not compared",
            "",
            ", ".join(link for name, link in linked.items() if name not in compared)
            + ". Like all others, they are tested",
            "against their equations, worked out by hand, and against the laws of `tests/algorithms/test_laws.py`.",
            "",
        ]
    )


def row_of_source(key: str, source: dict[str, str], runs: list[str]) -> str:
    name = source["name"]
    link = f"[{name}](https://github.com/{name})" if "/" in name else name
    count = sum(run.startswith(f"{key}.") for run in runs)
    return row(link, source["by"], source["version"] or "not recorded", str(count))


def row_of_agreement(algorithm: str, source: str, runs: list[dict[str, Any]]) -> str:
    given = {name for run in runs for name in [*run["options"], *run["settings"]]}
    precision = "1e-6" if any(run.get("single") for run in runs) else "1e-12"
    return row(algorithm, source, str(len(runs)), listed(sorted(given - ALWAYS)) or "–", precision)


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def row_of_data_set(name: str) -> str:
    settings = ", ".join(f"`{key}={value!r}`" for key, value in data.default_settings(name).items())
    return row(name, f"`{data.default_partition(name)}`", settings)


def row_of_setting(option: Option) -> str:
    argument = "model" if option.section == "model" else option.name
    none = "" if option.none is None else f'; `"{option.none}"` for None'
    return row(f"`{option.path}`", f"`{argument}`", default(option), option.meaning, option.kind.values() + none)


def default(option: Option) -> str:
    """The default, and what it stands for where data set and algorithm say nothing."""
    return code(option.default) + (f": {code(option.general)}" if option.left_open else "")


def code(value: Any) -> str:
    return f"`{value!r}`"


def table(*headings: str) -> list[str]:
    """The head of a table."""
    return [row(*headings), "|" + "---|" * len(headings)]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def shipped(pages: list[Page]) -> str:
    """What there is, with the costs of algorithms, for a command line that need not measure or import anything."""
    about = {name: inspect.getdoc(scheme) or "" for name, scheme in SCHEMES.items()}
    content = {
        "algorithms": {
            each.name: {"title": each.title, "year": each.year, "cost": rounded(asdict(each.cost))} for each in pages
        },
        "datasets": data.available(),
        "models": models.available(),
        "partitions": {name: text.strip().splitlines()[0] for name, text in about.items()},
        "diagnostics": {name: each.meaning for name, each in DIAGNOSTICS.items()},
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def rounded(cost: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in cost.items()}


def readings() -> str:
    """The page of readings, with tables from what was measured."""
    return with_tables("readings.md", runpy.run_path(str(HOME / "reproduction" / "readings.py"))["tables"]())


def robustness() -> str:
    """The page of robustness, likewise."""
    return with_tables(
        "robustness.md", {"attacks": runpy.run_path(str(HOME / "reproduction" / "attacks.py"))["table"]()}
    )


def scale(pages: Sequence[Page]) -> str:
    """The page of bigger simulations, with what a client of every algorithm receives and sends."""
    groups: dict[tuple[float, float, int], list[str]] = {}
    for each in pages:
        cost = each.cost
        link = f"[{each.label}](algorithms/{each.name}.md)"
        groups.setdefault((round(cost.down, 2), round(cost.up, 2), cost.exchanges), []).append(link)
    million = 4  # MB of a million parameters
    rows = (
        row(sizes(down), sizes(up), f"{million * down:.3g} / {million * up:.3g} MB", str(exchanges), ", ".join(links))
        for (down, up, exchanges), links in sorted(groups.items())
    )
    head = table("models down", "models up", "of 1 M parameters", "exchanges", "algorithms")
    return with_tables("scale.md", {"traffic": "\n".join([*head, *rows])})


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with tables by name, each between its own comment and the next that says end."""
    text = (HOME / page).read_text("utf-8")
    for name, rows in tables.items():
        before, begin, rest = text.partition(f"<!-- table: {name} -->\n")
        if begin:
            text = f"{before}{begin}\n{rows}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def contents(*, measured: bool = False) -> dict[Path, str]:
    """Every page and its text; costs are those that were shipped, unless `measured` anew."""
    pages = [page(name, measured=measured) for name in algorithms.available()]
    return {
        HOME / "settings.md": settings(),
        HOME / "agreement.md": agreement(pages),
        HOME / "readings.md": readings(),
        HOME / "robustness.md": robustness(),
        HOME / "scale.md": scale(pages),
        ALGORITHMS / "README.md": index(pages),
        **{ALGORITHMS / f"{each.name}.md": markdown(each) for each in pages},
        overview.FILE: shipped(pages),
    }


if __name__ == "__main__":
    ALGORITHMS.mkdir(exist_ok=True)
    for path, text in contents(measured=True).items():
        path.write_text(text, encoding="utf-8")
