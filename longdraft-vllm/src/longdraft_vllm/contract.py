"""Everything of vLLM's inside that the plugin relies on, in one list, checked against the source of
a vLLM.

`python -m longdraft_vllm.contract FOLDER` prints where the vLLM in this folder differs, one line
each.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from longdraft_vllm.source import Missing, Source, installed


class Mismatch(RuntimeError):
    """This vLLM differs from the one that the plugin was written for."""


@dataclass(frozen=True)
class Takes:
    """A function, or a class by its constructor, takes these parameters: at least these, by these
    names.
    """

    where: str
    names: str

    def problem(self, source: Source) -> str | None:
        taken = source.parameters(source.get(self.where))
        missing = [name for name in self.names.split() if name not in taken]
        return (
            f"{self.where} takes ({', '.join(taken)}) but not {', '.join(missing)}"
            if missing
            else None
        )


@dataclass(frozen=True)
class Sets:
    """A class has these attributes: it assigns them to self somewhere, declares them, or defines
    them.
    """

    where: str
    names: str

    def problem(self, source: Source) -> str | None:
        known = source.attributes(source.get(self.where))
        missing = [name for name in self.names.split() if name not in known]
        return f"{self.where} has no {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Calls:
    """The source of a function contains this text."""

    where: str
    text: str

    def problem(self, source: Source) -> str | None:
        found = source.code(source.get(self.where))
        return None if self.text in found else f"{self.where} no longer contains '{self.text}'"


RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
RUNNER2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"
SAMPLER = "vllm.v1.worker.gpu.sample.sampler:Sampler"
REJECTION = "vllm.v1.sample.rejection_sampler:RejectionSampler"
REJECTION2 = "vllm.v1.worker.gpu.spec_decode.rejection_sampler:RejectionSampler"
APPLIED = "logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids"
CONFIG = "vllm.config"
CONTRACT: dict[str, list[Any]] = {
    "registration": [
        Takes("vllm.platforms.interface:Platform.check_and_update_config", "vllm_config"),
        Sets(f"{CONFIG}:VllmConfig", "use_v2_model_runner"),
    ],
    "text": [
        Sets(f"{CONFIG}:SpeculativeConfig", "num_speculative_tokens method model"),
        Sets(
            f"{CONFIG}:VllmConfig",
            "speculative_config scheduler_config model_config additional_config",
        ),
        Sets(f"{CONFIG}:SchedulerConfig", "max_num_seqs"),
        Sets(f"{CONFIG}:ModelConfig", "max_model_len"),
    ],
    "sampling": [
        Takes(
            "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
            "x cu_num_tokens num_tokens replace_from replace_to",
        ),
    ],
    "plain steps": [
        Takes(f"{REJECTION}.forward", "metadata draft_probs logits sampling_metadata"),
        Sets(REJECTION, "sampler"),
        Takes("vllm.v1.sample.sampler:Sampler.forward", "logits sampling_metadata"),
        Sets("vllm.v1.spec_decode.metadata:SpecDecodeMetadata", "max_spec_len"),
    ],
    "self-draft": [
        Takes(
            f"{RUNNER}.propose_draft_token_ids",
            "scheduler_output sampled_token_ids sampling_metadata hidden_states "
            "sample_hidden_states aux_hidden_states"
            " spec_decode_metadata common_attn_metadata slot_mappings",
        ),
        Takes(f"{RUNNER}.load_model", "self"),
        Sets(RUNNER, "drafter input_batch attn_groups model max_model_len device vllm_config"),
        Sets("vllm.v1.core.sched.output:SchedulerOutput", "scheduled_spec_decode_tokens"),
        Sets("vllm.v1.worker.gpu_input_batch:InputBatch", "num_tokens_no_spec req_ids block_table"),
        Sets("vllm.v1.worker.block_table:MultiGroupBlockTable", "block_tables __getitem__"),
        Sets(
            "vllm.v1.worker.block_table:BlockTable",
            "block_size num_blocks_per_row get_device_tensor",
        ),
        Sets(
            "vllm.v1.worker.utils:AttentionGroup", "layer_names kv_cache_spec get_metadata_builder"
        ),
        Takes(
            "vllm.forward_context:set_forward_context",
            "attn_metadata vllm_config num_tokens slot_mapping",
        ),
        Takes(
            "vllm.v1.attention.backend:CommonAttentionMetadata",
            "query_start_loc query_start_loc_cpu seq_lens num_reqs num_actual_tokens "
            "max_query_len max_seq_len"
            " block_table_tensor slot_mapping causal",
        ),
        Takes(
            "vllm.v1.attention.backend:AttentionMetadataBuilder.build",
            "common_prefix_len common_attn_metadata",
        ),
        Takes(
            "vllm.v1.attention.backend:AttentionImpl.forward",
            "layer query key value kv_cache attn_metadata output",
        ),
        Sets("vllm.v1.kv_cache_interface:FullAttentionSpec", "sliding_window attention_chunk_size"),
        Sets("vllm.model_executor.layers.attention:Attention", "impl layer_name kv_cache"),
        Takes("vllm.config:get_layers_from_vllm_config", "vllm_config layer_type"),
        Sets(f"{CONFIG}:ParallelConfig", "worker_cls pipeline_parallel_size"),
        Sets(f"{CONFIG}:SchedulerConfig", "scheduler_cls"),
        Sets(f"{CONFIG}:ModelConfig", "uses_mrope use_mla is_hybrid"),
        Sets("vllm.v1.core.sched.scheduler:Scheduler", "num_lookahead_tokens num_spec_tokens"),
    ],
    "recycle": [
        Takes(f"{RUNNER}._sample", "logits spec_decode_metadata"),
        Takes(f"{RUNNER}.propose_draft_token_ids", "scheduler_output sampled_token_ids"),
        Sets(RUNNER, "drafter input_batch discard_request_mask"),
        Sets(
            "vllm.v1.worker.gpu_input_batch:InputBatch", "num_tokens_no_spec req_ids token_ids_cpu"
        ),
        Sets("vllm.v1.spec_decode.metadata:SpecDecodeMetadata", "num_draft_tokens draft_token_ids"),
    ],
    "keyed": [
        Takes(f"{RUNNER}._sample", "logits spec_decode_metadata"),
        Sets(RUNNER, "sampler input_batch requests"),
        Sets("vllm.v1.sample.sampler:Sampler", "topk_topp_sampler"),
        Takes(
            "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_native",
            "logits generators k p",
        ),
        Takes("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p", "logits k p"),
        Takes(
            "vllm.v1.sample.rejection_sampler:rejection_sample",
            "draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs "
            "target_logits"
            " bonus_token_ids sampling_metadata",
        ),
        Calls(f"{REJECTION}.forward", "output_token_ids = rejection_sample("),
        Sets(
            "vllm.v1.worker.gpu_input_batch:InputBatch",
            "num_tokens_no_spec req_ids generators sampling_metadata",
        ),
        Sets("vllm.v1.sample.metadata:SamplingMetadata", "temperature top_k top_p"),
        Sets("vllm.v1.spec_decode.metadata:SpecDecodeMetadata", "num_draft_tokens"),
    ],
    "pace": [
        Takes("vllm.distributed.parallel_state:GroupCoordinator.broadcast_object", "obj src"),
        Sets("vllm.distributed.parallel_state:GroupCoordinator", "world_size"),
    ],
    "window": [
        Takes(
            f"{PROPOSER}.build_per_group_and_layer_attn_metadata",
            "common_attn_metadata draft_index",
        ),
        Takes(f"{RUNNER}.initialize_kv_cache", "kv_cache_config"),
        Sets(PROPOSER, "draft_attn_groups block_size"),
        Sets("vllm.v1.kv_cache_interface:FullAttentionSpec", "sliding_window attention_chunk_size"),
        Sets("vllm.v1.attention.backend:CommonAttentionMetadata", "seq_lens_cpu_upper_bound"),
    ],
    "cpu": [
        Takes("vllm.v1.worker.cpu_model_runner:CPUModelRunner", "vllm_config device"),
        Takes("vllm.v1.worker.cpu_worker:CPUWorker.init_device", "self"),
        Sets("vllm.v1.worker.cpu_worker:CPUWorker", "model_runner"),
        Sets(
            "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadata",
            "query_start_loc block_table",
        ),
        Sets("vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder", "isa"),
        Takes(
            "vllm._custom_ops:cpu_attn_reshape_and_cache",
            "key value key_cache value_cache slot_mapping isa",
        ),
    ],
    "v2 registration": [
        Calls(
            f"{CONFIG}:VllmConfig._get_v2_model_runner_unsupported_features",
            "speculative method '{",
        ),
        Takes("vllm.v1.worker.worker_base:WorkerBase", "vllm_config"),
        Sets("vllm.v1.worker.worker_base:WorkerBase", "vllm_config"),
    ],
    "v2": [
        Takes("vllm.v1.worker.gpu.spec_decode:init_speculator", "vllm_config device req_states"),
        Takes(
            "vllm.v1.worker.gpu.model_states:init_model_state",
            "vllm_config model encoder_cache device",
        ),
        Calls(f"{RUNNER2}.__init__", "init_speculator( self.vllm_config"),
        Calls(f"{RUNNER2}.load_model", "custom = self.model_state.custom_sampler(self.sampler)"),
        Calls(f"{RUNNER2}.sample", "self.speculator.draft_logits"),
        Calls(
            f"{RUNNER2}.sample_tokens",
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
        ),
        Calls(
            f"{RUNNER2}.take_draft_token_ids", "return self.draft_tokens_handler.get_draft_tokens()"
        ),
        Takes("vllm.v1.outputs:DraftTokenIds", "req_ids draft_token_ids"),
        Takes(
            f"{SPECULATOR}:BaseSpeculator.propose",
            "input_batch num_sampled num_rejected last_sampled dummy_run num_speculative_tokens",
        ),
        Sets("vllm.v1.worker.gpu.input_batch:InputBatch", "idx_mapping req_ids"),
        Sets(
            "vllm.v1.worker.gpu.states:RequestState", "all_token_ids total_len last_sampled_tokens"
        ),
        Sets("vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor", "gpu"),
        Sets(SAMPLER, "req_states"),
    ],
    "v2 recycle": [
        Takes(f"{SAMPLER}.apply_sampling_params", APPLIED),
        Calls(
            f"{SAMPLER}.sample",
            "self.apply_sampling_params( logits, expanded_idx_mapping, idx_mapping,",
        ),
        Calls(
            f"{REJECTION2}._verify",
            "self.sampler.apply_sampling_params( logits, expanded_idx_mapping, idx_mapping,",
        ),
        Sets(
            "vllm.v1.worker.gpu.states:RequestState", "req_id_to_index index_to_req_id prefill_len"
        ),
        Sets(f"{CONFIG}:ParallelConfig", "enable_batch_sharded_sampling"),
    ],
    "v2 keyed": [
        Takes(f"{SAMPLER}.sample", "logits expanded_idx_mapping idx_mapping idx_mapping_np pos"),
        Calls(
            f"{SAMPLER}.__call__",
            "self.sample( logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos,",
        ),
        Takes(REJECTION2, "sampler spec_config device"),
        Takes(
            f"{REJECTION2}._verify",
            "logits draft_logits draft_sampled pos cu_num_logits idx_mapping "
            "idx_mapping_np expanded_idx_mapping"
            " expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled",
        ),
        Calls(f"{REJECTION2}._verify", "return processed_logits, sampled, num_sampled"),
        Sets(SAMPLER, "sampling_states"),
        Sets(
            "vllm.v1.worker.gpu.sample.states:SamplingStates",
            "seeds seeds_set temperature top_k top_p vocab_size",
        ),
        Takes("vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p", "logits k p"),
        Sets("vllm.v1.worker.gpu.states:RequestState", "req_id_to_index"),
    ],
    "v2 self-draft": [
        Calls(f"{RUNNER2}.load_model", "self.speculator.load_model(self.model)"),
        Sets(
            f"{SPECULATOR}:DraftModelSpeculator",
            "load_draft_model set_attn load_model model vllm_config device",
        ),
        Takes(
            f"{SPECULATOR}:DraftModelSpeculator.set_attn",
            "model_state kv_cache_config block_tables target_input_buffers target_attn_groups",
        ),
        Sets(
            "vllm.v1.worker.gpu.block_table:BlockTables",
            "block_sizes input_block_tables num_blocks",
        ),
        Sets(
            "vllm.v1.worker.gpu.input_batch:InputBatch",
            "req_ids idx_mapping_np num_draft_tokens_per_req",
        ),
        Sets("vllm.v1.worker.gpu.states:RequestState", "max_model_len"),
        Sets(
            f"{CONFIG}:ParallelConfig",
            "enable_eplb decode_context_parallel_size prefill_context_parallel_size",
        ),
    ],
    "gpu": [
        Takes(RUNNER, "vllm_config device"),
        Takes("vllm.v1.worker.gpu_worker:Worker.init_device", "self"),
        Sets("vllm.v1.worker.gpu_worker:Worker", "model_runner"),
    ],
}


def problems(part: str, source: Source) -> list[str]:
    """What of a part's list this vLLM does not have, each in one line."""
    found = []
    for term in CONTRACT[part]:
        try:
            problem = term.problem(source)
        except Missing as missing:
            problem = f"vLLM has no {term.where}" + (
                "" if str(missing) == term.where else f" ({missing})"
            )
        found += [problem] if problem else []
    return found


@cache
def check(part: str) -> None:
    """Raise Mismatch, in one line that names what changed, unless all that a part relies on is
    there.
    """
    try:
        source = installed()
    except Missing as missing:
        raise Mismatch(str(missing)) from None
    for problem in problems(part, source):
        raise Mismatch(f"longdraft-vllm does not fit vLLM {source.version()}: {problem}")


@cache
def fits(*parts: str) -> bool:
    """Whether all that these parts rely on is there; if not, what is missing is logged once."""
    try:
        for part in parts:
            check(part)
    except Mismatch as problem:
        logging.getLogger("vllm.longdraft").warning("%s", problem)
        return False
    return True


def main(words: list[str]) -> int:
    """Print the differences of the vLLM in a folder -> 1 if there are any, 2 if there is no
    vLLM.
    """
    if len(words) != 1:
        print(
            "usage: python -m longdraft_vllm.contract FOLDER (which contains the package vllm)",
            file=sys.stderr,
        )
        return 2
    try:
        source = Source(Path(words[0]))
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    found = [f"{part}: {problem}" for part in CONTRACT for problem in problems(part, source)]
    print("\n".join(found or [f"vLLM {source.version()} has all that longdraft-vllm relies on"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
