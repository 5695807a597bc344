"""Reads interface.h: makes its ctypes classes and function types, and compares them with builds."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum
from itertools import count, takewhile
from typing import Any

SCALARS = {
    "void": None,
    "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8,
    "int": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
# the digits of layout.cpp
TYPE_DIGITS = {None: 0, ctypes.c_int32: 3, ctypes.c_int64: 4, ctypes.c_float: 5, ctypes.c_double: 6}


class Interface:
    """The structures, enumerations and functions of a header whose every declaration is understood.

    A pointer to a structure has its ctypes class as type; a pointer to numbers is an address
    (c_void_p). A structure has no attributes but its fields. Raises ValueError for any other kind
    of declaration than interface.h has.
    """

    def __init__(self, header: str):
        # C type -> ctypes type of a value; None: there are only pointers
        self.types: dict[str, Any] = dict(SCALARS)
        self.structs: dict[str, type[ctypes.Structure]] = {}
        self.enums: dict[str, Any] = {}
        # name -> (C type of the result, result, arguments)
        self.functions: dict[str, tuple[str, Any, list[Any]]] = {}
        forms = {
            r'extern "C" \{|\}': lambda: None,
            r"struct (\w+);": self._opaque,
            r"struct (\w+) \{ ([^{}]+); \};": self._struct,
            r"enum (\w+) : (\w+) \{ (\w+(?:, \w+)*) \};": self._enum,
            r"([\w* ]+)\(([^()]*)\);": self._function,
        }
        skipped = r"//.*|^#pragma once$|^#include <cstdint>$"
        rest = " ".join(re.sub(skipped, "", header, flags=re.MULTILINE).split())
        while rest:
            for form, declare in forms.items():
                if match := re.match(form, rest):
                    declare(*match.groups())
                    rest = rest[match.end() :].lstrip()
                    break
            else:
                raise ValueError(
                    f"interface.h has a declaration that is not understood: {rest[:60]}"
                )

    def _opaque(self, name: str) -> None:
        self.types[name] = None

    def _struct(self, name: str, body: str) -> None:
        fields = list[tuple[str, Any]]()
        for line in body.split("; "):
            names, kind = self._typed(line)
            fields += [(field, kind) for field in names]
        self.structs[name] = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
        self.types[name] = self.structs[name]

    def _enum(self, name: str, kind: str, body: str) -> None:
        self.enums[name] = IntEnum(name, body.split(", "), start=0)
        self.types[name] = SCALARS[kind]

    def _function(self, head: str, body: str) -> None:
        (name,), result = self._typed(head)
        arguments = [self._typed(argument)[1] for argument in body.split(", ") if argument]
        self.functions[name] = (head.split()[0], result, arguments)

    def _typed(self, text: str) -> tuple[list[str], Any]:
        """The names and the ctypes type of a declaration.

        "const float* scores" -> (["scores"], type). Values of one type may share a declaration.
        """
        match = re.fullmatch(r"(?:const )?(\w+)((?:\*(?: const)?)*) (\w+(?:, \w+)*)", text)
        pointers, names = (match[2].count("*"), match[3].split(", ")) if match else (0, [])
        if not match or match[1] not in self.types or pointers > 2 or (pointers and len(names) > 1):
            raise ValueError(f"interface.h has a declaration that is not understood: {text}")
        value = self.types[match[1]]
        if pointers == 2:
            return names, ctypes.POINTER(ctypes.c_void_p)
        if pointers == 1:
            value = ctypes.c_char_p if value is ctypes.c_char else ctypes.c_void_p
            struct = self.structs.get(match[1])
            return names, value if struct is None else ctypes.POINTER(struct)
        return names, value

    def layout(self) -> dict[str, tuple[int, int]]:
        """{name: (number, kind)} of everything in the header, like the table of layout.cpp."""
        table = {}
        for enum in self.enums.items():
            table |= {value.name: (int(value), _kind(self.types[enum[0]])) for value in enum[1]}
        for name, struct in self.structs.items():
            table[name] = (ctypes.sizeof(struct), _kind(struct))
            for field, kind in struct._fields_:  # type: ignore[misc]
                table[f"{name}.{field}"] = (getattr(struct, field).offset, _kind(kind))
        for name, (_, result, arguments) in self.functions.items():
            digits = "".join(str(_kind(kind)) for kind in (result, *arguments))
            table[name] = (0, int(f"1{digits}", 8))
        return table

    def rows(self) -> str:
        """The rows of layout.cpp's table; the compiler fills in what it made of the header."""
        rows = [f"VALUE({value.name})," for enum in self.enums.values() for value in enum]
        for name, struct in self.structs.items():
            fields = [field for field, _ in struct._fields_]  # type: ignore[misc]
            rows += [f"STRUCT({name}),", *(f"FIELD({name}, {field})," for field in fields)]
        rows += [f"FUNCTION({name})," for name in self.functions]
        return "\n".join(rows) + "\n"

    def difference(self, lib: Any) -> str:
        """The reason why a build does not have this interface; empty if it does."""
        if not hasattr(lib, "longdraft_interface"):
            return "it does not describe its interface"
        lib.longdraft_interface.restype = ctypes.POINTER(self.structs["Entry"])
        entries = takewhile(
            lambda entry: entry.name is not None,
            map(lib.longdraft_interface().__getitem__, count()),
        )
        wanted = self.layout()
        built = {entry.name.decode(): (entry.number, entry.kind) for entry in entries}
        names = [name for name in {**wanted, **built} if wanted.get(name) != built.get(name)]
        names += [name for name in self.functions if not hasattr(lib, name)]
        return f"it differs in {names[0]}" if names else ""

    def declare(self, lib: Any, errcheck: Any) -> None:
        """Set the types of every function of the library, and errcheck where it returns a Code."""
        for name, (kind, result, arguments) in self.functions.items():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
            if kind == "Code":
                function.errcheck = errcheck


def _kind(kind: Any) -> int:
    """The digit that layout.cpp has for this ctypes type: 2 for a structure, 1 for any pointer."""
    if kind in TYPE_DIGITS:
        return TYPE_DIGITS[kind]
    return 2 if issubclass(kind, ctypes.Structure) else 1
