"""Figures that docs/which-algorithm.md quotes are those of the stored results."""

from __future__ import annotations

from pathlib import Path

import pytest

from undrift.recommendation import measured

DOCS = Path(__file__).parents[2] / "docs"


def text() -> str:
    return " ".join((DOCS / "which-algorithm.md").read_text("utf-8").split())


def stored(page: str, case: str, algorithm: str) -> list[float]:
    """What was measured, in the first row of a page with this case and algorithm: mean, and spread if there is one."""
    lines = (DOCS / "reproduction" / f"{page}.md").read_text("utf-8").splitlines()
    row = next(line for line in lines if line.startswith(f"| {case} | {algorithm} |"))
    return [float(figure) for figure in row.split(" | ")[-2].split("±")]


@pytest.mark.parametrize(
    ("page", "case", "algorithm", "quoted"),
    [
        ("fedhbm-table3", "non-IID", "FedHBM", "FedHBM has {mean} ± {spread} %"),
        ("fedhbm-table3", "non-IID", "FedAvg", "FedAvg {mean} ± {spread} %](reproduction/fedhbm-table3.md)"),
        ("fedpmvr-table1-fmnist", "β = 0.1", "FedAvg", "FedAvg has {mean} ± {spread} and FedPMVR"),
        ("fedpgvc-table2-fmnist", "α = 0.5", "FedAvg", "FedAvg has {mean} ± {spread} and FedPGVC"),
        ("fedpgvc-table2-fmnist", "α = 0.5", "FedPGVC", "{mean} ± {spread} by Eq. 8–10"),
        ("fedpgvc-table2-fmnist", "α = 0.5", "FedPGVC (additive)", "{mean} ± {spread} with the sum of §8"),
        ("fedpgvc-table2-fmnist", "α = 0.5", "FedPGVC (product)", "{mean} ± {spread} by Eq. 15 as printed"),
        ("fedhbm-shakespeare", "non-IID", "FedADC", "FedADC and AdaBest have {mean} %"),
        ("fedhbm-shakespeare", "non-IID", "AdaBest", "FedADC and AdaBest have {mean} %"),
        ("fedhbm-shakespeare", "non-IID", "FedHBM", "FedHBM {mean}, FedAvg"),
        ("fedhbm-shakespeare", "non-IID", "FedAvg", "FedAvg {mean}. Nothing is said"),
        ("feddpc-table2", "α = 0.2", "FedDPC", "| FedDPC | **{mean} ± {spread}** |"),
        ("feddpc-table2", "α = 0.6", "FedCM", "| **{mean} ± {spread}** | 2 / 1 |"),
    ],
)
def test_quoted_figures_are_those_of_their_pages(page: str, case: str, algorithm: str, quoted: str) -> None:
    figures = dict(zip(("mean", "spread"), (f"{each:.1f}" for each in stored(page, case, algorithm)), strict=False))
    assert quoted.format(**figures) in text()


def test_what_is_said_of_scaffold_is_what_was_measured() -> None:
    ahead = [
        "{:.1f} ± {:.1f}".format(*stored("fedpmvr-table1-cifar10", "β = 0.1", name)) for name in ("SCAFFOLD", "FedAvg")
    ]
    assert f"best accuracy {ahead[0]} against {ahead[1]} %" in text()
    found = measured.stored()
    behind = [
        f"{100 * found[task]['scaffold'].mean:.1f} against {100 * found[task]['fedavg'].mean:.1f} %"
        for task in ("fashion-mnist, Dirichlet 0.1, all", "cifar10, Dirichlet 0.1, all")
    ]
    assert f"{behind[0]} on Fashion-MNIST, {behind[1]} on CIFAR-10" in text()


def test_in_how_many_settings_fedavg_is_at_the_largest_rate() -> None:
    found = measured.stored().values()
    edge = sum(each["fedavg"].rate == max(measured.RATES) for each in found)
    assert f"in {edge} of the {len(found)} settings FedAvg's rate was the largest" in text()
