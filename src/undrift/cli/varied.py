"""Printing a comparison in which one setting takes several values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.markup import escape

from undrift.cli.console import print_json, print_markup, print_paths, print_table

if TYPE_CHECKING:
    from undrift.simulation.comparison import Comparison


def show_varied(comparison: Comparison, out: Path, as_json: bool) -> None:
    """A row per value, a column per algorithm; then what every task came to."""
    from undrift.reporting.facts import names_of
    from undrift.reporting.headline import headline
    from undrift.reporting.sensitivity import value_text
    from undrift.reporting.task import by_task
    from undrift.reporting.wording import percent_text

    report = comparison.report(out / "report.html")
    table = comparison.sensitivity()
    tasks = by_task(comparison.records)
    sentences = {name: headline(task, comparison.targets) for name, task in zip(names_of(tasks), tasks, strict=True)}
    if as_json:
        rows = json.loads(table.to_json(orient="records", double_precision=15))
        print_json({"headlines": sentences, "table": rows, "out": str(out), "report": str(report)})
        return
    key = table.columns[1]
    labels = list(dict.fromkeys(table["label"]))
    varied = table[table[key].notna()]
    rows_shown = []
    for value in dict.fromkeys(varied[key]):
        cells = [_cell(table[(table["label"] == label)], key, value) for label in labels]
        rows_shown.append([value_text(value), *(percent_text(*cell) for cell in cells)])
    print()
    print_table([key, *labels], rows_shown, numbers=range(1, len(labels) + 1))
    print_markup("[dim]Final test accuracy, with the standard deviation over seeds.[/]\n")
    for name, sentence in sentences.items():
        print_markup(f"{f'[bold]{escape(name)}[/]: ' if len(sentences) > 1 else ''}{escape(sentence)}")
    print()
    print_paths(runs=out, report=report)


def _cell(rows: pd.DataFrame, key: str, value: object) -> tuple[float, float]:
    """Mean and deviation with a value; of an algorithm that does not have the setting, those that it has anyway."""
    found = rows[(rows[key] == value) | rows[key].isna()]
    return (float("nan"), float("nan")) if found.empty else (found["accuracy"].iloc[0], found["std"].iloc[0])
