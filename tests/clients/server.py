"""A server on a free port with the bundled model and a chat template: python server.py CONTEXT MOST_NEW KEY ('': none).

Prints its address as the first line, and stops when its standard input is closed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.served import serving, url_of


def main(context: int, most_new: int, key: str) -> None:
    session = {"batch": 4, "slots": context, "chunk": 256, "queue": 32}
    with serving(session=session, most_new=most_new, keys=(key.encode(),) if key else ()) as server:
        print(url_of(server), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
