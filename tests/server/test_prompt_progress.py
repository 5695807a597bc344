"""Streams that tell how far their prompt has been read."""

from __future__ import annotations

import pytest
from support.served import TEXT, asked, chunks, said, tokens_of

LONG = TEXT * 12
PATHS = {
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
}


def streamed(http, path: str, text: str, **more) -> list[dict]:
    body = asked(stream=True, **more) | PATHS[path](text)
    if "messages" in body:
        del body["prompt"]
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        return chunks(response)


def progress_of(found: list[dict]) -> list[dict]:
    return [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]


@pytest.mark.parametrize("path", PATHS)
def test_progress_comes_before_the_first_token_and_ends_with_all_of_it(http, path):
    text = f"{path}\n{LONG}"
    found = streamed(http, path, text, return_progress=True)
    progress = progress_of(found)
    assert all("prompt_progress" in chunk for chunk in found[: len(progress)])
    done = [part["processed"] for part in progress]
    assert done == sorted(done) and done[-1] == progress[-1]["total"] >= len(tokens_of(text))
    assert {part["cache"] for part in progress} == {0}
    times = [part["time_ms"] for part in progress]
    assert times == sorted(times) and times[0] >= 0
    assert found[0]["choices"][0]["index"] == 0
    again = progress_of(streamed(http, path, text, return_progress=True))
    assert 0 < again[-1]["cache"] < again[-1]["processed"] == again[-1]["total"]


def test_the_text_is_the_same_with_and_without(http):
    def text(**more) -> str:
        found = streamed(http, "/v1/completions", LONG, **more)
        return "".join(chunk["choices"][0]["text"] for chunk in found)

    assert text(return_progress=True) == text() == said(tokens_of(LONG))
    assert progress_of(streamed(http, "/v1/completions", LONG)) == []


def test_each_part_of_a_prompt_beside_running_rows_has_a_chunk(server, http):
    """Beside a running row, parts have `chunk` tokens."""
    with http.stream("POST", "/v1/completions", json=asked(stream=True, max_tokens=200)) as beside:
        lines = beside.iter_lines()
        next(lines)
        progress = progress_of(
            streamed(http, "/v1/completions", "beside\n" + LONG, return_progress=True)
        )
    total = len(tokens_of("beside\n" + LONG))
    assert progress[-1]["total"] == total
    chunk = server.engine.session.chunk
    assert len(progress) > 1 and progress[0]["processed"] <= total - chunk


def test_several_prompts_report_each_one(http):
    body = asked(stream=True, return_progress=True, n=2, prompt=["one " + TEXT, "two " + TEXT])
    with http.stream("POST", "/v1/completions", json=body) as response:
        found = chunks(response)
    reported = [c["choices"][0]["index"] for c in found if "prompt_progress" in c]
    assert set(reported) == {0, 2}


def test_a_whole_answer_has_no_progress(http):
    found = http.post("/v1/completions", json=asked(return_progress=True))
    assert found.status_code == 200 and "prompt_progress" not in found.text


def test_other_apis_report_the_field_as_ignored(http):
    body = {"model": "tiny", "input": TEXT, "max_output_tokens": 2, "return_progress": True}
    found = http.post("/v1/responses", json=body)
    assert found.headers["x-longdraft-ignored"] == "return_progress"
