"""Refusing wrong arguments early, with what was given and what is allowed."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import os
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

# Models are trained in single precision (1e-38 to 3e38), in which the square of a setting must not overflow either.
SMALLEST, LARGEST = 1e-30, 1e18
MOST = 10**9  # of everything that is counted; rounds and clients are 32-bit words of the random generator

_WIDTH = 120  # of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _WIDTH


def shown(value: Any) -> str:
    """A value in one line of limited length, for messages."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # of the value's own code, or a number with too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def plain(value: Any) -> Any:
    """A number of NumPy, of torch or of the standard library as Python's own, which JSON can store.

    Arrays become lists; what is no number stays as it is.
    """
    with suppress(Exception):  # what cannot be converted is refused by the check that follows
        if type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, int | float) and isinstance(value, numbers.Real | Decimal):
            return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value


# What other libraries call an argument, and its name here.
_SYNONYMS = {
    "learning_rate": "lr",
    "local_lr": "lr",
    "client_lr": "lr",
    "step_size": "lr",
    "eta": "lr",
    "server_learning_rate": "server_lr",
    "global_lr": "server_lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "global_rounds": "rounds",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "local_steps": "steps",
    "num_clients": "clients",
    "n_clients": "clients",
    "fraction": "cohort",
    "participation": "cohort",
    "clients_per_round": "cohort",
    "batch": "batch_size",
    "l2": "weight_decay",
    "dataset": "data",
    "random_state": "seed",
}


def synonym(word: str) -> str:
    """The name here of what other libraries call `word`; any other word as it is."""
    plain = word.lower().replace("-", "_")
    return _SYNONYMS.get(plain, plain)


def nearest(word: object, allowed: Iterable[str]) -> str:
    """A closing half-sentence: the closest allowed word, or all of them."""
    words = list(allowed)
    close: list[str] = []
    if isinstance(word, str):
        cutoff = 0.5 if len(word) <= 2 else 0.6  # of two letters, one may be wrong
        close = [synonym(word)] if synonym(word) in words else difflib.get_close_matches(word, words, 1, cutoff)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(map(repr, words))}"


_CODE = re.compile(r"[^:()]+\.py:[^\W\d]\w*")


def names_code(text: str) -> bool:
    """Whether a text names something in a file of Python, as in ``net.py:Net``."""
    return _CODE.fullmatch(text) is not None


def unknown(what: str, name: object, allowed: Iterable[str], option: str) -> ValueError:
    """For a name that nobody knows; code in a file is only known if a command was given it by `option`."""
    if isinstance(name, str) and names_code(name):
        return ValueError(
            f"the {what} {shown(name)} is code, which is only run if the command itself names it; add {option} {name}"
        )
    return ValueError(f"unknown {what} {shown(name)}{nearest(name, allowed)}")


def choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        close = _close(value, words) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {shown(value)}{close}")


def _close(value: str, words: list[str]) -> str:
    close = difflib.get_close_matches(value, words, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    single: bool = True,
) -> None:
    """A finite real number in an interval (closed unless said otherwise), which `single` precision must hold."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    try:
        given = float(value)
    except OverflowError:
        given = sys.float_info.max if value > 0 else -sys.float_info.max  # a whole number beyond all floats
    inside = (given > low if open_low else given >= low) and (given < high if open_high else given <= high)
    if not math.isfinite(given) or not inside:
        allowed = interval(low, high, open_low=open_low, open_high=open_high)
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}")
    if not single:
        return
    if abs(given) > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:g}, which single precision can hold, got {shown(value)}")
    if 0 < abs(given) < SMALLEST:
        zero = "" if open_low and low == 0 else "0 or "
        raise ValueError(f"{name} must be {zero}at least {SMALLEST:g}, which single precision can hold, got {value!r}")


def integer(name: str, value: Any, low: int, high: int = MOST) -> None:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {shown(value)}")
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {shown(value)}")


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")


def function(name: str, value: Any, *arguments: str) -> None:
    """Something that can be called with so many arguments."""
    wanted = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(value):
        raise TypeError(f"{wanted}, got {shown(value)}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # functions in C may not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{wanted}, got {shown(value)}: {error}") from None


def path(name: str, value: Any) -> Path:
    """A path, as a text or an object that stands for one."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path, got {shown(value)}")
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} must be a path, got {shown(text)}")
    try:
        os.lstat(text)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a name too long, a file among the folders above, not of this system
        reason = getattr(error, "strerror", None) or "the file system has no such names"
        raise ValueError(f"{name} must be a path, got {shown(text)}: {reason}") from None
    return Path(text)


def interval(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> str:
    """In words: "at least 0 and less than 1"."""
    lower = "" if low == -math.inf else f"{'greater than' if open_low else 'at least'} {low:g}"
    upper = "" if high == math.inf else f"{'less than' if open_high else 'at most'} {high:g}"
    return " and ".join(part for part in (lower, upper) if part) or "a finite number"


_LONGEST = 200  # characters; PyTorch's messages can be pages


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever goes wrong in a user's code meanwhile becomes a ValueError of one line that begins with `what`."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if len(line) <= _LONGEST else line[:_LONGEST].rsplit(" ", 1)[0] + " …"
