"""Calls of Llama 3.1 and later: an answer that is {"name": ..., "parameters": {...}}.

Several calls have ; between them.
"""

from __future__ import annotations

from longdraft.constraints import literal
from longdraft.server.calls.call_grammar import GrammarRules, RequiredCalls, object_rule
from longdraft.server.calls.format import CallFormat
from longdraft.server.calls.ways import Way, read_marked

TAG = "<|python_tag|>"


class Llama(CallFormat):
    """A call begins the answer, or follows <|python_tag|>."""

    names = (TAG,)
    ends = ("<|eom_id|>",)
    begins = True

    @property
    def ways(self) -> tuple[Way, ...]:
        return (Way(self.marks[TAG], "", read_marked),)

    def grammar(self, rules: GrammarRules, asked: RequiredCalls) -> str:
        call = rules.choice("function", [object_rule(f, "parameters") for f in asked.functions])
        calls = rules.add("calls", asked.calls(call, literal("; ")))
        if asked.least:
            return calls
        tagged = f"{self.marks.lark(TAG)} {calls} | " if TAG in self.marks.ids else ""
        rules.add("PLAIN", r"/([^{\[ \n\t\r](.|\n)*)?/")
        return f"{tagged}{calls} | PLAIN"
