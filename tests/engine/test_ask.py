"""`bench --ask` asks a model about pieces of a text, and its answers may end."""

from __future__ import annotations

import json

import pytest

from longdraft.cli import common
from longdraft.engine.decode_session import DecodeSession
from longdraft.models.loading import load


@pytest.mark.full
def test_a_question_about_a_text(cli, place, tmp_path, monkeypatch):
    """--ask puts pieces of a text and a question into the chat template; prompts have exactly
    --context tokens.
    """
    prompts = []
    started = DecodeSession.__init__

    def watched(self, target, given, *args, **options):
        prompts.extend(given)
        started(self, target, given, *args, **options)

    monkeypatch.setattr(DecodeSession, "__init__", watched)
    words = (
        "bench",
        "speed",
        "-m",
        "tiny",
        "--dtype",
        "float32",
        "--prompt-file",
        "long.txt",
        "--context",
        "64",
    )
    words += ("--repeat", "1", "--methods", "plain,vegas", "--max-new-tokens", "20")
    words += ("--temperature", "0.7", "--top-p", "0.9")
    status, _, err = cli(*words, "--ask", "Why?")
    assert status == 2 and "chat template" in err
    load_target = common.load_target

    def with_template(*args, **options):
        target, tokenizer = load_target(*args, **options)
        tokenizer.chat_template = "user {% for m in messages %}{{ m['content'] }}{% endfor %} model"
        return target, tokenizer

    monkeypatch.setattr(common, "load_target", with_template)
    status, out, _ = cli(*words, "--ask", "Why?", "--out", str(tmp_path / "r.jsonl"))
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert status == 0 and all(
        r["equal"] and r["question"] == "Why?" and r["top_p"] == 0.9 for r in records
    )
    assert "asked: Why?" in out and "top-p 0.9" in out and len(prompts[0]) == 64
    _, tokenizer = load("tiny", "float32")
    text = tokenizer.decode(prompts[0])
    assert text.startswith("user ") and text.endswith("Why? model")
