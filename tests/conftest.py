"""Every test runs on one thread, as pytest-xdist brings the processes, and leaves no process of its own running."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator

import pytest
import torch

from trials import networks_are_tried_once as networks_are_tried_once

torch.set_num_threads(1)
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the compiler of PyTorch would start processes that outlive a test


# Of extras, and what tests compare with. A machine that can only compute, with a GPU for example, has none of them.
OPTIONAL = frozenset(
    {
        *("cryptography", "datasets", "dp_accounting", "flwr", "httpx", "hypothesis", "matplotlib", "mlflow", "optuna"),
        *("playwright", "ray", "scikit_posthocs", "scipy", "sklearn", "starlette", "statsmodels", "tensorboard"),
        *("torchmetrics", "uvicorn", "wandb"),
    }
)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of tests that imports a package which is not installed is skipped as a whole, and says so."""
    report = yield
    error = report.call.excinfo.value.__cause__ if report.failed and report.call and report.call.excinfo else None
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if package in OPTIONAL:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {package} is not installed")
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="many cases of every attack, as `make attack` runs them")
    parser.addoption("--all", action="store_true", help="tests that take long as well, as `make test-all` runs them")
    parser.addoption("--attack-seed", default="0", help="of the random cases of attacks (default 0)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes long; make test-all runs it"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    yield
    torch.set_num_threads(1)  # a test that pretends to have more may leave them, and slow down all others


@pytest.fixture(autouse=True)
def _no_algorithm_left_behind() -> Iterator[None]:
    yield
    if algorithms := sys.modules.get("undrift.algorithms"):
        algorithms._OWN.clear()  # those of users' files, which later tests would find among all others


@pytest.fixture(scope="session", autouse=True)
def _no_process_left_running() -> Iterator[None]:
    try:
        import psutil
    except ImportError:  # a machine that can only compute
        yield
        return
    before = set(psutil.Process().children(recursive=True))
    yield
    started = set(psutil.Process().children(recursive=True)) - before
    _, running = psutil.wait_procs(started, timeout=60)
    commands = [" ".join(process.cmdline()) for process in running]
    for process in running:
        process.kill()
    assert not commands, f"processes left running: {commands}"
