"""Names of the proposers of nodes, as traces have them (`Drafter.name`).

Each has its label on the server's page.
"""

from __future__ import annotations

PROPOSERS = {
    "model": "the model under its view",
    "n-grams": "n-grams of the text",
    "heads": "trained heads",
    "small model": "a small model",
    "block": "a trained block or layer",
    "constraint": "the constraint, which forces them",
    "drafter": "another drafter",
}
