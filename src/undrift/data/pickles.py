"""Reading a pickle without running it.

A pickle is a program for a stack machine: it can call any function and, with calls that look harmless, reach memory
that is not its own. Here every instruction is followed in plain Python, and a call is only written down, as a `Call`,
for the reader to recognise or refuse. Nothing is imported, called or changed.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any, NamedTuple

_INSTRUCTIONS = 2_000_000  # at most; four times those of CIFAR-100's training set
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = {  # instructions that carry a value: numbers, text, bytes
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}


class Name(NamedTuple):
    """Something of a module that the pickle refers to."""

    module: str
    name: str


@dataclass(eq=False)
class Call:
    """A call that the pickle asks for, and the state that the object it would make is to be given."""

    function: Any
    arguments: Any
    state: Any = None


def read(content: bytes) -> Any:
    """The value of a pickle: numbers, text, bytes, lists, tuples, dicts, and what it wants called."""
    machine = _Machine()
    try:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if count >= _INSTRUCTIONS:
                raise ValueError(f"it has more than {_INSTRUCTIONS} instructions")
            if instruction.name == "STOP":
                break
            machine.follow(instruction.name, argument)
        return machine.pop()
    except (IndexError, KeyError) as error:  # raised by the machine
        raise ValueError("its instructions do not fit together") from error


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        stack, memo = self.stack, self.memo
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = self.top()
        elif name == "MEMOIZE":
            memo[len(memo)] = self.top()
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple(reversed([self.pop() for _ in range(_TUPLES[name])])))
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self.marked()
            stack.append(items if name == "LIST" else tuple(items) if name == "TUPLE" else _pairs(items))
        elif name in ("APPEND", "APPENDS"):
            items = [self.pop()] if name == "APPEND" else self.marked()
            self.top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self.marked()
            self.top(dict).update(_pairs(items))
        elif name == "GLOBAL":
            stack.append(Name(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = self.pop(), self.pop()
            if not isinstance(module, str) or not isinstance(attribute, str):
                raise IndexError
            stack.append(Name(module, attribute))
        elif name == "REDUCE":
            arguments, function = self.pop(), self.pop()
            stack.append(Call(function, arguments))
        elif name == "BUILD":
            state = self.pop()
            self.top(Call).state = state
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the instruction {name}, which no array needs")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise IndexError
        return value

    def top(self, kind: type = object) -> Any:
        if self.stack[-1] is _MARK or not isinstance(self.stack[-1], kind):
            raise IndexError
        return self.stack[-1]

    def marked(self) -> list[Any]:
        """What lies above the last mark, which goes, too."""
        items = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    if len(items) % 2 or not all(isinstance(key, (str, bytes, int, Call)) for key in keys):
        raise IndexError
    return dict(zip(keys, items[1::2], strict=True))
