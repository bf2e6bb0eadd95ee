"""Over HTTP: who may read, who may write, what is answered, and that ids are no paths."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have a successor of httpx
    from starlette.testclient import TestClient

from folders import append_rows, write_run
from undrift.storage.directory import RunDirectory
from undrift.ui.access import Keys, is_loopback
from undrift.ui.app import Live, make_app
from undrift.ui.jobs import Jobs

HOME = "http://localhost:8420"


class Server:
    """A server of a folder, and browsers that visit it."""

    def __init__(self, root: Path, loopback: bool = True) -> None:
        self.links: list[str] = []
        self.keys = Keys(8420, self.links.append)
        self.app = make_app(Live(root, self.keys), loopback=loopback)

    def visitor(self, base: str = HOME, **headers: str) -> TestClient:
        return TestClient(self.app, base_url=base, headers=headers, follow_redirects=False)

    def owner(self, base: str = HOME) -> TestClient:
        """A browser that opened the printed address, with what its page sends."""
        visitor = self.visitor(base)
        assert visitor.get("/", params={"link": self.keys.new_link()}).status_code == 303
        page = visitor.get("/api/session").json()["page"]
        visitor.headers.update({"x-undrift-page": page, "origin": base, "sec-fetch-site": "same-origin"})
        return visitor


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    write_run(tmp_path / "runs" / "a", [0.1, 0.2])
    return tmp_path / "runs"


@pytest.fixture
def server(root: Path) -> Server:
    return Server(root)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been started."""
    commands: list[list[str]] = []

    def refuse(self: Jobs, kind: str, home: Path, arguments: list[str]) -> Any:
        commands.append(list(arguments))
        raise OSError("not in this test")

    monkeypatch.setattr(Jobs, "_run", refuse)
    return commands


def only_run(visitor: TestClient) -> dict[str, Any]:
    (run,) = visitor.get("/api/runs").json()["runs"]
    found: dict[str, Any] = run
    return found


# Reading


def test_anybody_on_this_machine_may_read_and_nobody_may_write(server: Server, no_processes: list[list[str]]) -> None:
    visitor = server.visitor()
    assert "<title>undrift</title>" in visitor.get("/").text
    session = visitor.get("/api/session").json()
    assert (session["writable"], session["page"]) == (False, "")
    run = only_run(visitor)
    assert (run["label"], run["status"]) == ("FedAvg", "stopped")
    for path in ("start", "stop", "resume"):
        answer = visitor.post(f"/api/{path}", json={"run": run["id"], "algorithm": "fedavg"})
        assert answer.status_code == 401
    assert no_processes == []
    assert server.keys.token not in visitor.get("/").text


def test_only_what_is_new_is_sent(server: Server, root: Path) -> None:
    visitor = server.visitor()
    before = visitor.get("/api/runs").json()
    id = before["runs"][0]["id"]
    assert visitor.get("/api/runs", params={"since": before["version"]}).json()["runs"] == []
    (curve,) = visitor.get("/api/curves", params={"column": "accuracy", "curve": id}).json()["curves"]
    assert curve["y"] == [0.1, 0.2]
    append_rows(root / "a", [0.3])
    server.app.state.live.catalogue.refresh()
    after = visitor.get("/api/runs", params={"since": before["version"]}).json()
    assert [run["rounds"] for run in after["runs"]] == [3]
    assert not after["all"]
    asked = {"column": "accuracy", "curve": f"{id}~{curve['stamp']}"}
    (more,) = visitor.get("/api/curves", params=asked).json()["curves"]
    assert (more["reset"], more["round"], more["y"]) == (False, [3], [0.3])
    restarted = visitor.get("/api/runs", params={"since": "0000-7"}).json()  # a version of another server
    assert restarted["all"]
    assert len(restarted["runs"]) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2fapp.py",
        "/static//etc/passwd",
        "/api/run/..%2f..%2fsecret.txt",
        "/api/run/%2e%2e",
        "/report?run=../secret.txt",
        "/report?run=/etc/passwd",
        "/secret.txt",
    ],
)
def test_ids_are_no_paths(server: Server, path: str) -> None:
    answer = server.visitor().get(path)
    assert answer.status_code in (404, 405, 409)
    assert "secret" not in answer.text.replace(path, "")
    assert "import" not in answer.text


def test_curves_of_what_is_no_run(server: Server) -> None:
    asked = {"column": "<b>", "curve": ["../a", "", "~", "0" * 16]}
    assert server.visitor().get("/api/curves", params=asked).json()["curves"] == []


def test_configuration_and_report(server: Server) -> None:
    visitor = server.visitor()
    id = only_run(visitor)["id"]
    found = visitor.get(f"/api/run/{id}").json()
    assert found["config"]["options.lr"] == "0.1"
    page = visitor.get("/report", params={"run": id})
    assert page.status_code == 200
    assert "FedAvg" in page.text
    # Its script runs without the origin of this server.
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    assert "allow-same-origin" not in page.headers["content-security-policy"]
    nothing = visitor.get("/report")
    assert (nothing.status_code, "\n" in nothing.text) == (409, False)


def test_pages_are_confined(server: Server) -> None:
    page = server.visitor().get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert all(link.startswith(("/static/", "data:,")) for link in links)
    for link in links:
        if link.startswith("/static/"):
            assert server.visitor().get(link).status_code == 200


def test_many_curves_at_once_leave_runs_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = server.visitor()
    id = only_run(visitor)["id"]
    monkeypatch.setattr("undrift.ui.app._READING", -1.0)  # no time is left
    (curve,) = visitor.get("/api/curves", params={"curve": id}).json()["curves"]
    assert curve["y"] == [0.1, 0.2]
    assert not only_run(visitor)["loading"]


# Who is asking


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8420", "LOCALHOST.:8420", "127.0.0.2"])
def test_loopback_names_are_answered(server: Server, host: str) -> None:
    assert server.visitor(host=host).get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil", "", "10.0.0.1"]
)
def test_a_name_that_was_pointed_at_this_machine_is_not(server: Server, host: str) -> None:
    for path in ("/", "/api/runs", "/api/session", f"/?link={server.keys.new_link()}"):
        answer = server.visitor(host=host).get(path)
        assert answer.status_code == 421
        assert "set-cookie" not in answer.headers


def test_a_link_opens_once(server: Server) -> None:
    link, visitor = server.keys.new_link(), server.visitor()
    answer = visitor.get("/", params={"link": link})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert visitor.get("/api/session").json()["writable"]
    assert visitor.get("/", params={"link": link}).status_code == 303  # the same browser, again
    stranger = server.visitor()
    assert stranger.get("/", params={"link": link}).status_code == 403
    assert not stranger.get("/api/session").json()["writable"]
    assert len(server.links) == 1  # another one is told in the terminal
    assert stranger.get("/", params={"link": "guess"}).status_code == 403
    assert len(server.links) == 1  # and no more before it is used
    assert stranger.get("/", params={"link": server.links[0]}).status_code == 303


def test_other_machines_need_the_token_to_read(root: Path) -> None:
    server = Server(root, loopback=False)
    base = "http://box.example:8420"
    stranger = server.visitor(base)
    for path in ("/", "/api/runs", "/api/session", "/api/events", "/static/page.js", "/report"):
        assert stranger.get(path).status_code == 401
    for wrong in ("", "x", server.keys.token[:-1], server.keys.token + "x", "é"):
        headers = {"authorization": f"Bearer {wrong}".encode()}
        assert stranger.get("/api/runs", headers=headers).status_code == 401
        stranger.cookies.set(server.keys.cookie, wrong.replace("é", "e"))
        assert stranger.get("/api/runs").status_code == 401
    program = server.visitor(base, authorization=f"Bearer {server.keys.token}")
    assert program.get("/api/runs").status_code == 200
    assert server.owner(base).get("/").status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": None},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"x-undrift-page": "guess"},
        {"x-undrift-page": None},
    ],
)
def test_other_pages_cannot_write_with_a_browsers_cookie(
    server: Server, no_processes: list[list[str]], changed: dict[str, str | None]
) -> None:
    owner = server.owner()
    for name, value in changed.items():
        if value is None:
            del owner.headers[name]
        else:
            owner.headers[name] = value
    assert owner.post("/api/start", json={"algorithm": "fedavg"}).status_code == 403
    assert no_processes == []


def test_forms_of_other_pages_are_no_json(server: Server, no_processes: list[list[str]]) -> None:
    owner = server.owner()
    text = '{"algorithm": "fedavg"}'
    assert owner.post("/api/start", content=text, headers={"content-type": "text/plain"}).status_code == 415
    assert owner.post("/api/start", data={"algorithm": "fedavg"}).status_code == 415
    assert owner.post("/api/start", json={"algorithm": "x" * 70_000}).status_code == 413
    for wrong in ("[1]", "{", "[" * 30_000, "null"):
        answer = owner.post("/api/start", content=wrong, headers={"content-type": "application/json"})
        assert answer.status_code == 400
    for path in ("start", "stop", "resume"):
        assert owner.get(f"/api/{path}").status_code == 405
    assert no_processes == []


# Writing


def test_the_page_and_programs_may_write(server: Server, root: Path, no_processes: list[list[str]]) -> None:
    owner = server.owner()
    program = server.visitor(authorization=f"Bearer {server.keys.token}")
    for writer in (owner, program):
        answer = writer.post("/api/start", json={"algorithm": "fedavg", "rounds": "3"})
        assert (answer.status_code, answer.text) == (409, "not in this test")
        arguments = no_processes.pop()
        assert arguments[:3] == ["run", "--algorithm=fedavg", "--rounds=3"]
        assert arguments[-1] == f"--out={root / 'fedavg-digits-1'}"
        assert not (root / "fedavg-digits-1").exists()
    id = only_run(owner)["id"]
    owner.post("/api/resume", json={"run": id, "rounds": 20})
    assert no_processes.pop() == ["resume", "--rounds=20", "--", str(root / "a")]


def test_refusals_say_why(server: Server, root: Path, no_processes: list[list[str]]) -> None:
    owner = server.owner()
    id = only_run(owner)["id"]
    answer = owner.post("/api/start", json={"algorithm": "fedavgg"})
    assert answer.status_code == 409
    assert "'fedavg'" in answer.text
    for run in ("../a", "a", None, 7, id.upper() + "x"):
        assert owner.post("/api/stop", json={"run": run}).status_code == 404
        assert owner.post("/api/resume", json={"run": run}).status_code == 404
    assert owner.post("/api/stop", json={"run": id}).text == "no process on this machine trains it"
    for rounds in (0, -1, "5", 1.5, True):
        assert "rounds must be" in owner.post("/api/resume", json={"run": id, "rounds": rounds}).text
    with RunDirectory.open(root / "a").writing():
        assert "program or notebook" in owner.post("/api/stop", json={"run": id}).text
        assert owner.post("/api/resume", json={"run": id}).text == "it is running already"
    (root / "a" / "config.json").write_text("{")
    assert "cannot be resumed" in owner.post("/api/resume", json={"run": id}).text
    assert no_processes == []


def test_addresses_of_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "example.org", "")))
