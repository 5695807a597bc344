#!/bin/sh
# The published figures on a CPU with nothing beside it: benchmarks/cpu.sh [RECORDS.jsonl]
# Appends to RECORDS and writes report.md beside it.
set -eu
out=${1:-runs/cpu.jsonl}
export OMP_PROC_BIND=true
bench() { longdraft bench --out "$out" "$@"; }

# Acceptance on held-out text, greedy and sampled, beside the controls; guidance is that of a draft's own verification.
views=vegas,vegas@score=logits@rows=ends@reach=0,magicdec-stream,random-picks,recents
for temperature in 0 1; do
    bench --task anchored --methods "$views" --text code,book --context 4096,8192 --anchors 200 --settle 1 --temperature "$temperature"
done

# Cost at a stated acceptance, and plain decoding beside Transformers' own.
bench --methods plain,vegas,magicdec-stream --accept 5.5 --context 4096,8192,16384
bench --methods plain,vegas,hf-static,hf-dynamic --accept 5.5 --context 32768 --max-new-tokens 96 --repeat 5
bench --methods plain,vegas --accept 5.5 --shape 6x384 --context 8192,32768

# Free-running text: what a user sees. Greedy text of a small model loops; read it beside the sampled one.
for temperature in 1 0; do
    bench --methods plain,lookup,magicdec-stream,vegas --text code,book --context 4096,8192 --temperature "$temperature"
done

# The same in float32, where every output must equal plain decoding's.
bench --methods plain,lookup,magicdec-stream,vegas --context 4096 --temperature 1 --repeat 1 --dtype float32

longdraft report "$out" --out "$(dirname "$out")"
