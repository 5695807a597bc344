"""The command line shows warnings of Transformers that concern results, once and in a line, and
hides the others.
"""

from __future__ import annotations

import json
import logging

import pytest
from support import tiny
from transformers.utils import logging as library

from longdraft.models import library_messages
from longdraft.models.library_messages import only_serious
from longdraft.models.loading import load_lm, quiet

SERIOUS = (
    "This checkpoint seem corrupted.",
    "You are using a model of type `a` to instantiate a model of type `b`.",
    "Unrecognized keys in `rope_parameters` for 'rope_type'='yarn': {'x'}",
    "something that nobody has thought of",
)
HARMLESS = (
    "`torch_dtype` is deprecated! Use `dtype` instead!",
    "The fast path is not available because one of the required library is not installed.",
    "PhiForCausalLM LOAD REPORT from: x",
)


@pytest.fixture(autouse=True)
def shown(capsys):
    """What was printed since the last call."""
    only_serious()
    return lambda: [
        line for line in capsys.readouterr().err.splitlines() if "longdraft: note: " in line
    ]


def test_warnings_that_concern_results_are_a_line_each(shown):
    logger = library.get_logger("transformers.modeling_utils")
    for text in (*SERIOUS, *HARMLESS, *SERIOUS):
        logger.warning(text.replace(". ", ".\n"))
    assert shown() == [f"longdraft: note: Transformers warns: {text}" for text in SERIOUS]
    only_serious()
    logger.warning(SERIOUS[0])
    assert len(shown()) == 1


def test_errors_and_long_warnings(shown):
    logger = library.get_logger("transformers.x")
    logger.error("deprecated and broken")
    logger.warning("a " * library_messages.MAX_LINE)
    broken, long = shown()
    assert broken.endswith("deprecated and broken") and len(long) < library_messages.MAX_LINE + 60


def test_all_warnings_hidden_as_before_is_seen(shown):
    library.set_verbosity_error()  # planted
    logging.getLogger("transformers.modeling_utils").warning(SERIOUS[0])
    assert shown() == []


@pytest.mark.full
def test_a_configuration_that_contradicts_itself_is_shown(tmp_path, shown):
    """Transformers warns of the factor, and goes on."""
    tiny.stock("llama").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    rope = {
        "rope_type": "yarn",
        "factor": 3.7,
        "original_max_position_embeddings": 64,
        "rope_theta": 1e4,
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_parameters": rope}))
    quiet(None)
    load_lm(str(tmp_path), "float32")
    (line,) = shown()
    assert "Transformers warns: The explicitly set RoPE scaling factor" in line
