"""The files of the picture."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.two_clients.drawing import Layout, Panel
from undrift.two_clients.paths import Paths
from undrift.two_clients.picture import trace, write

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</script><img src=x onerror="document.title=1">$&'
IN_DOCS = Path(__file__).parents[2] / "docs" / "images" / "client-drift.svg"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def paths() -> list[Paths]:
    """Of two algorithms, and one that diverged at once."""
    fedavg, scaffold = trace("fedavg,scaffold", rounds=3, steps=4, lr=0.3)
    point = np.array([2.6, -0.9])
    return [fedavg, scaffold, Paths(HOSTILE, point[None], np.empty((0, 2, 5, 2)), True, 0.3)]


def lines_of(file: Path) -> list[np.ndarray[Any, Any]]:
    root = ElementTree.parse(file).getroot()
    texts = [each.get("points", "").split() for each in root.iter(f"{SVG}polyline")]
    return [np.array([[float(value) for value in point.split(",")] for point in points]) for points in texts]


def test_svg(paths: list[Paths], tmp_path: Path) -> None:
    file = write(paths, tmp_path / "new" / "a.svg")
    texts = [each.text for each in ElementTree.parse(file).getroot().iter(f"{SVG}text")]
    assert {"FedAvg", "SCAFFOLD", HOSTILE, "diverges in round 1"} <= set(texts)
    assert "3 rounds of 4 local steps, learning rate 0.3; both clients take part in every round" in texts
    assert f"{paths[0].distances[-1]:.2f} from the optimum after 3 rounds" in texts
    lines = lines_of(file)
    assert sum(len(line) == 1 + 5 for line in lines) == 2 * 2 * 3  # algorithms, clients, rounds
    for panel in map(Panel, paths):
        assert any(np.array_equal(panel.server, line) for line in lines)


def test_options_of_algorithms(tmp_path: Path) -> None:
    found = ud.draw_drift([ud.algorithms.FedProx(mu=0.5), "fedadam(server_lr=0.1)"], tmp_path / "a.svg", rounds=1)
    assert {"FedProx(mu=0.5)", "FedAdam(server_lr=0.1)"} <= {
        each.text for each in ElementTree.parse(found).getroot().iter(f"{SVG}text")
    }


@pytest.mark.parametrize(("suffix", "first"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_images(paths: list[Paths], tmp_path: Path, suffix: str, first: bytes) -> None:
    assert write(paths, tmp_path / f"a.{suffix}").read_bytes().startswith(first)


@pytest.mark.parametrize("count", range(1, 8))
def test_nothing_overlaps(count: int) -> None:
    layout = Layout(count)
    places = layout.places
    assert len(set(places)) == count
    assert all(x + layout.panel[0] <= layout.width - layout.margin for x, _ in places)
    assert all(entry.x + entry.width <= layout.width for entry in layout.legend)
    assert layout.legend[-1].y < places[0][1] - 40


def test_picture_of_the_documentation(tmp_path: Path) -> None:
    """`make picture` drew it; the command draws the same, to rounding."""
    here, there = lines_of(ud.draw_drift(path=tmp_path / "a.svg")), lines_of(IN_DOCS)
    assert len(here) == len(there)
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.25)


def test_command(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--steps", "2", "--lr", "0.1"]
    found = CliRunner().invoke(app, ["show", "drift", "-a", "fedavg,scaffold", *options, "--out", f"{tmp_path}/a.html"])
    assert found.exit_code == 0, found.output
    assert re.search(r"SCAFFOLD +\d\.\d\d from the optimum after 2 rounds", found.stdout)
    assert f"picture: {tmp_path}/a.html" in found.stdout
    assert "SCAFFOLD" in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("algorithms", "name", "options", "message"),
    [
        ("fedavg", "a.gif", {}, r"\.html, \.svg, \.png, \.pdf, got '.*a.gif'"),
        ("", "a.svg", {}, "needs algorithms"),
        ("fedavgg", "a.svg", {}, "did you mean 'fedavg'"),
        ("moon", "a.svg", {}, "MOON compares representations"),
        ("mafsvrg", "a.svg", {}, "at most the number of clients, 2"),
        ("fedavg", "a.svg", {"rounds": 0}, "rounds must be"),
        ("fedavg", "a.svg", {"lr": -1}, "lr must be"),
        ("fedavg", "a.svg", {"rounds": 1000, "steps": 1000}, "at most 20000, got 1000 × 1000"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    algorithms: str, name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ud.draw_drift(algorithms, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_page_is_self_contained(paths: list[Paths], tmp_path: Path) -> None:
    page = write(paths, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:link|img|script src)|https?://", page.replace("http://www.w3.org/2000/svg", ""))
    stored = re.search(r'id="paths">(.*?)</script>', page, re.DOTALL)
    assert stored
    data = json.loads(stored[1])
    assert (data["steps"], data["rounds"]) == (4, 3)
    assert data["panels"][1]["server"] == Panel(paths[1]).server.tolist()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no browser here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, file: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page, and what went wrong in it."""
    page, complaints = browser.new_page(**options), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    return page, complaints


def test_time_can_be_moved(browser: Any, paths: list[Paths], tmp_path: Path) -> None:
    page, complaints = opened(browser, write(paths, tmp_path / "a.html"))
    panel, slider, output = Panel(paths[0]), page.locator("input[type=range]"), page.locator("output")

    def place(kind: str) -> list[float]:
        dot = page.locator(f"figure:first-child .plane {kind}").first
        return [float(dot.get_attribute(axis)) for axis in ("cx", "cy")]

    assert output.inner_text() == "end · after 3 rounds"
    assert place(".end") == panel.server[-1].tolist()
    round = 4 + 2  # local steps, and the time in which the server moves
    slider.fill(f"{round + 3}")
    assert output.inner_text() == "round 2 · local step 3 of 4"
    assert place(".client.c1") == panel.clients[0, 1, 1 + 3].tolist()
    assert place(".client.c2") == panel.clients[1, 1, 1 + 3].tolist()
    assert place(".end") == panel.server[1].tolist()
    assert (
        page.locator("figcaption").first.inner_text() == f"{paths[0].distances[1]:.2f} from the optimum after 1 round"
    )
    assert page.locator("figcaption").last.inner_text() == "diverges in round 1"
    shown = page.locator("figure:first-child .local.c1 polyline:visible")
    assert shown.count() == 2  # the first round and what is walked of the second

    page.keyboard.press("ArrowRight")
    assert place(".client.c1") == panel.clients[0, 1, 1 + 4].tolist()
    page.locator("h1").click()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert output.inner_text() == "round 3 · begins"
    assert place(".end") == panel.server[2].tolist()
    slider.focus()
    page.keyboard.press("PageDown")
    assert output.inner_text() == "round 2 · begins"
    page.keyboard.press("Home")
    assert output.inner_text() == "start"
    assert place(".end") == panel.server[0].tolist()

    assert page.title().startswith("Client drift")
    assert complaints == []


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_playing_ends_at_the_end(browser: Any, tmp_path: Path, motion: str) -> None:
    (path,) = trace("fedavg", rounds=1, steps=1, lr=0.3)
    page, complaints = opened(browser, write([path], tmp_path / "a.html"), reduced_motion=motion)
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Play").wait_for()
    assert page.locator("output").inner_text() == "end · after 1 round"
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_as_wide_as_a_phone(browser: Any, paths: list[Paths], tmp_path: Path, scheme: str) -> None:
    file, size = write(paths, tmp_path / "a.html"), {"width": 390, "height": 844}
    page, complaints = opened(browser, file, viewport=size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(19, 21, 24)") == (scheme == "dark")
    assert complaints == []
