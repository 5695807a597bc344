"""Tasks `long`: thousands of tokens that are written from a short prompt."""

from __future__ import annotations

from longdraft.bench.tasks.task import Task

NEW = 4000
ASKED = (
    "Write a complete tutorial on writing a command-line program in Python that keeps a "
    "list of tasks in a file. Show"
    " the program as it grows from section to section, explain every line, and end with its tests.",
    "Write a story in ten chapters about an engineer who repairs lighthouses. Each chapter "
    "has a title, and what"
    " happens in it follows from the one before.",
    "Write a Python module for matrices without libraries: addition, multiplication, "
    "transposition, determinant,"
    " inverse, LU and QR decomposition, eigenvalues. Document every function and write a "
    "test for each.",
    "Write the documentation of an HTTP service that manages a library's books, readers "
    "and loans: every route with"
    " its parameters, an example of a request and of an answer, and all errors.",
    "Explain how a computer runs a program, from the key that starts it to the pixels on "
    "the screen: twenty numbered"
    " sections of several paragraphs each.",
    "Write the rules of a card game for four players that you invent, then a full match of "
    "ten rounds, move by move.",
)


def build(instance: int) -> Task:
    return Task("long", str(instance), (ASKED[instance % len(ASKED)],), new_tokens=NEW)
