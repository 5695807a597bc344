#!/bin/sh
# Speed on a CPU with nothing beside it: benchmarks/cpu.sh [RECORDS.jsonl]
# Appends to RECORDS and writes report.md beside it. acceptance.sh measures acceptance.
set -eu
out=${1:-runs/cpu.jsonl}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bench() { longdraft bench --out "$out" "$@"; }

# What a step costs: the bundled target, and a shape with more keys to read.
bench --task steps --context 8192,32768 --repeat 9
bench --task steps --shape 6x384 --context 8192,32768 --repeat 5

# Speedups at a stated acceptance (an oracle's: figures of cost).
bench --methods plain,vegas --accept 5.5 --shape 6x384 --context 8192,32768,131072 --max-new-tokens 96
bench --methods plain,longspec-guided --accept 3.5 -o longspec-guided.widths=1,1,1,1,1 --context 8192,32768 --max-new-tokens 128
bench --methods plain,budgetdraft --accept 5.5 --context 4096,8192,16384 --max-new-tokens 128
bench --methods plain,vegas --accept 5.5 --batch 8 --context 16384 --max-new-tokens 48

# Beside Transformers' own generate, in both dtypes.
bench --methods plain,vegas,hf-static,hf-dynamic --accept 5.5 --context 32768 --max-new-tokens 64
bench --methods plain,hf-static,hf-dynamic --dtype float32 --context 32768 --max-new-tokens 32

# What a user sees on held-out text, each at its own pace. Greedy text of a small model loops: read the sampled one too.
for temperature in 1 0; do
    bench --methods plain,vegas,longspec-guided,budgetdraft,vegas-reuse,suffix,auto -o longspec-guided.widths=4,2,2,2,2 \
        --text code,book --context 16384,32768 --max-new-tokens 256 --temperature "$temperature"
done

# Text that drafts badly: random letters, and words of an alphabet that the bundled target never saw.
python3 - "$folder" <<'PYTHON'
import random, sys
rng, folder = random.Random(0), sys.argv[1]
letters = [chr(c) for c in (*range(33, 127), *range(0xA1, 0x17F))]
open(f"{folder}/noise.txt", "w").write("".join(rng.choices(letters, k=30000)))
greek = [chr(c) for c in range(0x3B1, 0x3CA)]
words = ["".join(rng.choices(greek, k=rng.randint(2, 9))) for _ in range(3000)]
open(f"{folder}/greek.txt", "w").write(" ".join(rng.choices(words, k=12000)))
PYTHON
bench --methods plain,vegas,longspec-guided,budgetdraft,medusa,suffix,auto --prompt-file "$folder/noise.txt" \
    --prompt-file "$folder/greek.txt" --context 512,4096 --max-new-tokens 512 --temperature 1

longdraft report "$out" --out "$(dirname "$out")"
