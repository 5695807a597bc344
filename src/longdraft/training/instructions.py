"""Questions about pieces of text, to which a target writes answers for training its drafters."""

from __future__ import annotations

import numpy as np

# {} is the piece; what stands before it and what stands after it both occur in use.
ABOUT_CODE = (
    "Explain what this code does.\n\n{}",
    "```python\n{}\n```\n\nSummarize this code in a few sentences.",
    "Write a docstring for the first function in this code.\n\n{}",
    "Continue this Python code.\n\n```python\n{}",
    "{}\n\nWrite unit tests for the code above.",
    "Rewrite this code so that it is easier to read.\n\n```python\n{}\n```",
    "Which errors can this code raise, and why?\n\n{}",
    "List the names that this code defines, with one line about each.\n\n{}",
    "{}\n\nExplain this code to a beginner, step by step.",
    "Add comments to this code.\n\n```python\n{}\n```",
    "Write a similar function, and show how it is used.\n\n{}",
    "Review this code: what would you improve?\n\n{}",
)
ABOUT_PROSE = (
    "Summarize this passage.\n\n{}",
    "{}\n\nWhat happens in this text?",
    "Continue this story.\n\n{}",
    "Who appears in this passage, and what do we learn about them?\n\n{}",
    "Rewrite this passage in simple modern English.\n\n{}",
    "{}\n\nWrite three questions about this text, and answer them.",
    "What is the mood of this passage? Quote the words that show it.\n\n{}",
    "List the main points of this text.\n\n{}",
    "{}\n\nGive this text a title, and explain your choice.",
    "Write a letter from one of the people in this passage to a friend.\n\n{}",
    "Write a short dialogue based on this passage.\n\n{}",
    "What could happen next? Describe two possibilities.\n\n{}",
    "Write a short essay about the subject of this passage.\n\n{}",
)


def ask(piece: str, code: bool, rng: np.random.Generator) -> str:
    """A user's message about a piece of source code or prose, drawn with rng."""
    forms = ABOUT_CODE if code else ABOUT_PROSE
    return forms[int(rng.integers(len(forms)))].replace("{}", piece.strip())
