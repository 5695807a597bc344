"""Decode many prompts with continuous batching: `serve` for a list or iterator, `Session` for
requests over time.
"""

from __future__ import annotations

from longdraft import Session, build, load, serve

target, tokenizer = load("bundled")
texts = [
    "def read(path):",
    "class Reader:\n",
    "It was a dark and",
    "for line in",
    "import ",
    "My dear Joe,",
]
prompts = [tokenizer(text)["input_ids"] for text in texts]

# At most four prompts run side by side; each result is yielded when its prompt ends.
for done in serve(target, prompts, build("vegas", target), batch=4, max_new_tokens=24):
    print(done.index, repr(texts[done.index] + tokenizer.decode(done.tokens)))

# A session takes requests at any time; each has its own seed, token limit and end tokens, and can
# be cancelled.
with Session(target, build("lookup", target), batch=2) as session:
    first, second = (session.submit(prompt, max_new_tokens=12) for prompt in prompts[:2])
    session.cancel(second)
    while session.running or session.waiting:
        for event in session.step():
            print("request", event.id, repr(tokenizer.decode(event.tokens)), event.ended or "")
