"""`undrift resume`: continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli.help import examples
from undrift.cli.options import AsJson
from undrift.cli.own_code import options_with_code, resumed_with, use_algorithms, use_data, use_model
from undrift.cli.results import train
from undrift.core import check


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("undrift resume runs/fedhbm-digits-1 --rounds 200"))(resume)


def _code(name: str, short: str, example: str) -> Any:
    return typer.Option(name, short, metavar="FILE.py:NAME", help=f"Code that the run needs, as in {example}.")


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", hidden=True)],
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Change the total number of rounds.")] = None,
    algorithm: Annotated[str | None, _code("--algorithm", "-a", "mine.py:Mine")] = None,
    data: Annotated[str | None, _code("--data", "-d", "mine.py:load")] = None,
    model: Annotated[str | None, _code("--model", "-m", "net.py:Net")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of a run on Ray: another cluster than it was begun on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that was stopped, or add rounds to it.

    DIR is its directory. The results are those of a run that was never stopped. Trackers that log the run continue.

    Code that a run was started with is named again; nothing in DIR is executed. So is code that makes the module or
    the data of a run that was begun in Python: architecture and samples are checked, weights come from DIR.
    """
    for option, given in (("-a", algorithm), ("-d", data), ("-m", model)):
        if given is not None and not check.names_code(given):
            raise ValueError(f"{option} names code that the run was started with, as in net.py:Net, got {given!r}")
    import undrift as ud
    from undrift.algorithms import known
    from undrift.storage import tracked
    from undrift.storage.directory import RunDirectory
    from undrift.trackers import available, named

    stored = RunDirectory.open(directory).config
    names = _names(stored)
    use_model(model, names["model"])
    use_data(data, names["data"])
    use_algorithms(algorithm)
    if (name := stored["algorithm"].get("name")) not in known():
        raise ValueError(f"the algorithm {name!r} is not known here; if it is code in a file, add -a FILE.py:NAME")
    objects = _objects(directory, stored, data, model)
    trackers = named([name for name in tracked.read(directory) if name in available()])
    with resumed_with(options_with_code(algorithm, data, model), directory):
        train(lambda: ud.resume(directory, rounds, address=address, callbacks=trackers, **objects), as_json)


def _names(stored: dict[str, Any]) -> dict[str, Any]:
    """What the run directory says of data and model: names, or texts that name code."""
    data = stored.get("data")
    return {"data": data.get("name") if isinstance(data, dict) else None, "model": stored.get("model")}


def _objects(directory: Path, stored: dict[str, Any], data: str | None, model: str | None) -> dict[str, Any]:
    """What code makes in place of objects that were given in Python."""
    from undrift import models
    from undrift.data import load
    from undrift.simulation.describe import given_as_objects

    options = {part: text for part, text in (("data", data), ("model", model)) if text is not None}
    needed = given_as_objects(stored)
    for part, name in _names(stored).items():
        if part in options and part not in needed and not check.names_code(str(name)):
            raise ValueError(
                f"-{part[0]} {options[part]} does not belong to this run: its {part} is {name!r}; leave -{part[0]} out"
            )
    if missing := [part for part in needed if part not in options]:
        if set(needed) <= {"data", "model"}:
            how = "name code that makes them: " + " ".join(f"-{part[0]} FILE.py:NAME" for part in needed)
        else:
            how = f"continue it there: ud.resume({str(directory)!r}, {', '.join(f'{part}={part}' for part in needed)})"
        raise ValueError(f"this run was begun in Python with objects for {' and '.join(missing)}; {how}")
    if not needed:
        return {}
    seed = stored["options"]["seed"]
    recipe = {key: value for key, value in stored["data"].items() if key != "digest"}
    federation = load(**({"name": data, "seed": seed} if "data" in needed else recipe))
    if "data" in needed:
        federation.recipe = {}  # samples are compared, not the name of a file
    if "model" not in needed:
        return {"data": federation}
    module = models.build(str(model), tuple(federation.x.shape[1:]), federation.classes, seed)
    return {"data": federation, "model": module}
