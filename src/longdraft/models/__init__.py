"""What is computed: a language model of Transformers with its weights and its backend."""

from __future__ import annotations
