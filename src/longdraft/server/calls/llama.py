"""Calls of Llama 3.1 and later: an answer that is {"name": ..., "parameters": {...}}, or several with ; between."""

from __future__ import annotations

from longdraft.constraints import literal
from longdraft.server.calls.format import Format
from longdraft.server.calls.grammar import Asked, Rules, object_rule
from longdraft.server.calls.objects import read_objects
from longdraft.server.calls.reader import Reader, Steps

TAG = "<|python_tag|>"


class Llama(Format):
    """A call begins the answer, or follows <|python_tag|>."""

    names = (TAG,)
    ends = ("<|eom_id|>",)

    def read(self, reader: Reader) -> Steps[None]:
        begin: int | None = 0
        while begin is not None:
            called = yield from read_objects(reader, begin, ";")
            if reader.full:
                return
            if not called:
                reader.give("content", begin)
            begin = yield from reader.until((self.marks[TAG],), "content")
        reader.finish()

    def grammar(self, rules: Rules, asked: Asked) -> str:
        one = rules.choice("function", [object_rule(f, "parameters") for f in asked.functions])
        calls = rules.add("calls", asked.calls(one, literal("; ")))
        if asked.least:
            return calls
        tagged = f"{self.marks.lark(TAG)} {calls} | " if TAG in self.marks.ids else ""
        rules.add("PLAIN", r"/([^{\[ \n\t\r](.|\n)*)?/")
        return f"{tagged}{calls} | PLAIN"
