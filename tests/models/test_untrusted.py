"""No file of a model chooses code, packages or the network: its folder loads all the same, or is
refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import hostile_models, tiny
from test_model import tokenizer

from longdraft import InputError
from longdraft.drafters.small_model.drafter import random_lm
from longdraft.drafters.small_model.kind import SMALL_MODEL
from longdraft.models.untrusted import neutral


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What became of each folder."""
    root = tmp_path_factory.mktemp("hostile")
    tiny.stock("llama").save_pretrained(root / "good")
    tokenizer().save_pretrained(root / "good")
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"} | {
        "HF_HOME": str(root / "home")
    }
    run = subprocess.run(
        [sys.executable, hostile_models.__file__, str(root)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", hostile_models.CASES)
def test_a_folder_chooses_nothing(outcomes, case):
    found = outcomes[case]
    words = hostile_models.CASES[case][1]
    assert found["touched"] == []
    if words is None:
        assert (
            found["outcome"] == "loaded"
            and found["text"] == outcomes["nothing"]["text"] is not None
        )
    else:
        assert (
            words in found["outcome"]
            and "\n" not in found["outcome"]
            and "Error: " not in found["outcome"][:30]
        )


def test_a_drafter_takes_the_same_way(tmp_path):
    target = tiny.target("llama")
    random_lm(target, 0).hf.save_pretrained(tmp_path / "small")
    hostile_models.edit("adapter_config.json", base_model_name_or_path="evil/repo")(
        tmp_path / "small"
    )
    with pytest.raises(InputError, match="merge it into its model"):
        SMALL_MODEL.load(str(tmp_path / "small"), target)


def test_quantizations_that_can_be_undone_are():
    """So that no kernels are fetched for them; those of a nested config too."""
    text = SimpleNamespace(quantization_config={"quant_method": "fp8"})
    whole = SimpleNamespace(
        quantization_config={"quant_method": "mxfp4", "x": 1}, text=text, sub_configs={"text": None}
    )
    assert neutral(whole).quantization_config == {
        "quant_method": "mxfp4",
        "x": 1,
        "dequantize": True,
    }
    assert text.quantization_config["dequantize"] is True
    text.quantization_config = {"quant_method": "awq"}
    with pytest.raises(InputError, match=r"quantized \(awq\)"):
        neutral(whole)
