#!/bin/sh
# Default settings beside fixed ones and plain decoding: benchmarks/default.sh [FOLDER], half an hour on two quiet cores.
# Appends to FOLDER/default.jsonl, of which `python benchmarks/default_table.py FOLDER/default.jsonl` makes tables.
# MODELS, BUILDS, CONTEXTS, HOW and REPEAT choose less. The model's costs should be known: run `longdraft tune` first.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/default}
mkdir -p "$out"
methods="plain,vegas@pace=off@gamma=4,vegas@pace=off,vegas,suffix@pace=off,suffix,auto"

bench() {
    longdraft bench speed --text code,book --methods "$methods" --repeat "${REPEAT:-3}" --out "$out/default.jsonl" "$@"
}

for model in ${MODELS:-smollm2 bundled}; do
    for build in ${BUILDS:-avx2 avx512 avx512bf16}; do
        export LONGDRAFT_NATIVE="$build"
        for temperature in ${HOW:-0 1}; do
            bench -m "$model" --context "${CONTEXTS:-1024,7000}" --max-new-tokens 96 --temperature "$temperature"
            bench -m "$model" --context 4096 --max-new-tokens 512 --temperature "$temperature"
        done
        bench -m "$model" --context 1024 --max-new-tokens 96 --batch 8
    done
done
