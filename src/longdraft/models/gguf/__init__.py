"""Models in GGUF files.

`file` reads the container, `blocks` the tensor types; `model` and `tokenizer` use them.
"""
