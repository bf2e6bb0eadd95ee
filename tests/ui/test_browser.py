"""The live page in a browser: a run that grows, one that is started, stopped and resumed, broken and hostile ones."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from folders import append_rows, write_run
from processes import is_running, started, wait_until
from undrift.storage.directory import RunDirectory

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("no browser here", allow_module_level=True)
pytest.importorskip("playwright", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright  # noqa: E402

if TYPE_CHECKING:
    Process = subprocess.Popen[str]

PATIENCE = 300_000  # milliseconds; only a page that hangs takes so long
expect.set_options(timeout=PATIENCE)
HOSTILE = "<img src=x onerror=\"document.title='owned'\">'\n" + "very long " * 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ui") / "runs"


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Process]:
    write_run(root / "grows", [0.1, 0.2], label="Grows", rounds=100)
    write_run(root / "<b>'&\"; rm -rf", [0.3, 0.2], label=HOSTILE)
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    command = [sys.executable, "-m", "undrift", "ui", str(root), "--port", "0"]
    with started(command) as process:
        yield process


@pytest.fixture(scope="module")
def url(server: Process) -> str:
    """The printed address, as soon as it is printed."""
    assert server.stdout is not None
    line = server.stdout.readline()
    match = re.fullmatch(r"page: (http://127\.0\.0\.1:\d+/\?link=\S+)\n", line)
    assert match, line + (server.stderr.read() if server.stderr and server.poll() is not None else "")
    return match[1]


@pytest.fixture(scope="module")
def context(url: str) -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1200, "height": 800})
        context.set_default_timeout(PATIENCE)
        context.new_page().goto(url)  # sets the cookie
        yield context
        browser.close()


@pytest.fixture
def page(context: BrowserContext, url: str) -> Iterator[Page]:
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(url.partition("?")[0])
    expect(page.locator("#connection")).to_have_text("Live")
    yield page
    # A refused request, or a server that ended, is logged as an error by the browser, and shown by the page.
    assert [text for text in problems if "409" not in text and "ERR_" not in text] == []
    page.close()


def row(page: Page, text: str) -> Locator:
    return page.locator(".run", has=page.locator(".label", has_text=text))


def tick_only(page: Page, run: Locator) -> None:
    page.click("#tick-none")
    run.locator("input").check()


def test_a_curve_grows_while_the_page_is_open(page: Page, root: Path) -> None:
    run = row(page, "Grows")
    tick_only(page, run)
    expect(run).to_contain_text("2 / 100")
    curve = page.locator("#chart path")
    expect(curve).to_have_attribute("d", re.compile(r"^M[^L]*(L[^L]*){1}$"))
    with RunDirectory.open(root / "grows").writing():
        append_rows(root / "grows", [0.5])
        expect(run.locator(".status")).to_have_text("running")
        expect(run).to_contain_text("3 / 100")
        expect(run).to_contain_text("50.0 %")
        expect(curve).to_have_attribute("d", re.compile(r"^M[^L]*(L[^L]*){2}$"))
    expect(run.locator(".status")).to_have_text("stopped")
    box = page.locator("#chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 50)
    expect(page.locator(".tip")).to_contain_text("Round 3")
    expect(page.locator(".tip")).to_contain_text("50.0 %")


def test_broken_and_hostile_runs_are_texts(page: Page) -> None:
    broken = page.locator(".run", has_text="broken")
    expect(broken.locator(".status")).to_have_text("broken")
    broken.click()
    expect(page.locator("#detail")).to_contain_text("config.json is damaged: not valid JSON")
    hostile = row(page, "<img")
    tick_only(page, hostile)
    expect(page.locator("#legend")).to_contain_text("onerror=")
    hostile.locator(".what").click()
    expect(page.locator("#detail h2")).to_contain_text("<img src=x")
    expect(page.locator("#detail .path")).to_contain_text("<b>'&\"; rm -rf")
    assert page.locator("main img, main b").count() == 0
    assert "owned" not in page.title()
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth == 390")  # the chart is drawn anew
    page.set_viewport_size({"width": 1200, "height": 800})


def test_a_visitor_without_the_token_may_only_read(context: BrowserContext, url: str) -> None:
    assert context.browser is not None
    stranger = context.browser.new_context()
    stranger.set_default_timeout(PATIENCE)
    page = stranger.new_page()
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 403  # the address was used
    page.goto(url.partition("?")[0])
    row(page, "Grows").click()
    expect(page.locator("#detail")).to_contain_text("Read only")
    expect(page.locator("#new")).to_be_disabled()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_disabled()
    stranger.close()


def test_start_stop_resume_and_end(page: Page, root: Path, server: Process) -> None:
    page.click("#new")
    form = page.locator("#form")
    form.locator("[name=algorithm]").fill("fedavgg")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#form-error")).to_contain_text("'fedavg'")  # refused before a process is started
    form.locator("[name=algorithm]").fill("fedavg")
    form.locator("[name=settings]").fill("local.epoch=1")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#form-error")).to_contain_text("unknown key 'local.epoch'")  # by the process
    assert not (root / "fedavg-digits-1").exists()
    # So many rounds would be compiled otherwise, which takes a while.
    form.locator("[name=settings]").fill("run.engine=sequential\nrun.eval_every=10")
    form.locator("[name=model]").select_option("softmax")
    form.locator("[name=rounds]").fill("5000000")
    form.get_by_role("button", name="Start").click()
    run = row(page, "FedAvg")
    expect(run.locator(".status")).to_have_text("running")
    expect(page.locator("#form-dialog")).not_to_be_visible()
    expect(run.locator("input")).to_be_checked()
    expect(page.locator("#detail h2")).to_have_text("FedAvg")
    expect(run.locator("svg path")).to_have_count(1)  # it has been evaluated twice
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(run.locator(".status")).to_have_text("stopped")
    home = RunDirectory.open(root / "fedavg-digits-1")
    assert home.find().dropped == 0  # it was saved
    done = len(home.rows())
    page.locator("#detail .buttons input").fill("6000000")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(run.locator(".status")).to_have_text("running")
    expect(run).to_contain_text("/ 6000000")
    wait_until(lambda: len(home.rows()) > done, server)

    # The end of the server stops and saves what was started in the page. No test can follow.
    children = psutil.Process(server.pid).children()
    assert children
    server.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert not any(is_running(child.pid) for child in children)
    found = home.find()
    assert found.checkpoint is not None
    assert (found.dropped, found.problems) == (0, [])  # nothing was lost
