"""A server on a free port with the bundled model and a chat template: python server.py CONTEXT
MOST_NEW KEY ('': none).

Prints its address as the first line, and stops when its standard input is closed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.served import loaded, serving, url_of

# Calls in Hermes's shape. The bundled model knows nothing of them: its calls come from grammars
# alone.
TEMPLATE = """\
{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call: <tool_call>
{"name": ..., "arguments": {...}}
</tool_call>
{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""  # noqa: E501


def main(context: int, most_new: int, key: str) -> None:
    session = {"batch": 4, "slots": context, "chunk": 256, "queue": 32}
    loaded()[1].chat_template = TEMPLATE
    with serving(session=session, most_new=most_new, keys=(key.encode(),) if key else ()) as server:
        print(url_of(server), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
