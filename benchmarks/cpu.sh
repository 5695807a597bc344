#!/bin/sh
# Speed on a CPU with nothing beside it, by every build of the kernels that it can run: benchmarks/cpu.sh [FOLDER]
# Each step writes FOLDER/STEP.jsonl (default: runs/cpu), and FOLDER/report.md is made from all of them. A step whose file
# exists is skipped, so the same command continues a run. acceptance.sh measures acceptance.
#   MINUTES=40      steps that would not fit are left out, with a line that says so; with three builds, those that take long
#                   (16K and eight texts side by side on the real model) need a second run of 20 minutes
#   SKIP=REGEXP     leaves out the steps whose name matches, like 'busy|peers'; ONLY=REGEXP runs only those that match
#   BUILDS="avx2"   these builds instead of all that the machine can run, best first
#   LLAMA_SERVER=FILE  llama.cpp built for this machine (build_llama_cpp.py) beside its wheel
#   MODEL=FOLDER    this model in place of SmolLM2 unpacked, such as one that fine_tune.py has trained
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/cpu}
here=$(dirname "$0")
minutes=${MINUTES:-40}
began=$(date +%s)
best=$(python3 -c "from longdraft.ops import native; print(*(k[1:] for k in native.NEEDS if native.opened(k)[0]))")
builds=${BUILDS:-$best}
[ -n "$builds" ] || { echo "cpu.sh: no build of the native kernels can run here" >&2; exit 2; }
best=${builds%% *}
binary=${LLAMA_SERVER:+--peer-llama-server $LLAMA_SERVER}
ends=$best # the widest and the narrowest build
if [ "$best" != "${builds##* }" ]; then ends="$best ${builds##* }"; fi
mkdir -p "$out"
failed=0

left() { echo $((minutes * 60 - ($(date +%s) - began))); }
limited() { # COMMAND... in the time that is left
    if command -v timeout > /dev/null; then timeout "$(left)" "$@"; else "$@"; fi
}
step() { # NAME BUILD MINUTES COMMAND... ; the command gets --out FILE as its last words
    name=$1 build=$2 need=$3
    shift 3
    [ -e "$out/$name.jsonl" ] && return
    if [ -n "${SKIP:-}" ] && echo "$name" | grep -Eq "$SKIP"; then return; fi
    if [ -n "${ONLY:-}" ] && ! echo "$name" | grep -Eq "$ONLY"; then return; fi
    if [ "$(left)" -lt $((need * 60)) ]; then
        echo "cpu.sh: $name is left out: it needs about $need of $minutes minutes; run the same command again" >&2
        return
    fi
    echo "== $name ($build), $(($(left) / 60)) minutes left"
    rm -f "$out/$name.part"
    status=0
    LONGDRAFT_NATIVE=$build limited "$@" --out "$out/$name.part" || status=$?
    # busy.py exits with 1 where a step takes too long beside a busy process: a result too
    case "$status $name" in "0 "* | "1 busy"*) ;; *) failed=1; echo "cpu.sh: $name failed ($status)" >&2; return ;; esac
    if [ -s "$out/$name.part" ]; then mv "$out/$name.part" "$out/$name.jsonl"; fi
}
bench() { # NAME BUILD MINUTES MEASUREMENT OPTIONS...
    name=$1 build=$2 need=$3
    shift 3
    step "$name" "$build" "$need" longdraft bench "$@"
}

# What a step costs in each build, alone and beside a busy process.
for build in $builds; do
    bench "steps-$build" "$build" 1 steps --context 8192,32768 --repeat 5
    step "busy-$build" "$build" 1 python3 "$here/busy.py" --context 8192 --seconds 0.5
done

# A real model. In bfloat16: MODEL, or SmolLM2 with its weights unpacked. As the packed file: beside other engines.
if longdraft fetch smollm2; then
    model=${MODEL:-$out/smollm2}
    if [ ! -e "$model/config.json" ]; then
        python3 "$here/fine_tune.py" "$model" "$here/../src/longdraft/assets/text" --steps 0
    fi
    for build in $builds; do
        bench "smollm2-steps-$build" "$build" 1 steps -m "$model" --text book --context 1024,7168 --repeat 5
    done
    # shellcheck disable=SC2086
    bench "smollm2-peers" "$best" 8 peers $binary -m smollm2 --methods plain,suffix,auto,quantspec --peers llama.cpp,transformers \
        --text book --context 1024,4096,7168 --max-new-tokens 64 --repeat 3
    copies="quantspec@draft_weights=int8@draft_kv=int8,vegas@draft_weights=int8@keep_ratio=0.25"
    for build in $ends; do
        for temperature in 1 0; do
            bench "smollm2-t$temperature-$build" "$build" 4 speed -m "$model" --methods "plain,$copies,suffix,auto" \
                --text code,book --context 1024,4096,7168 --max-new-tokens 64 --temperature "$temperature"
        done
    done
fi

# What a user sees on held-out text, drafts adapted. Greedy text of a small model loops: read the sampled one too.
methods=plain,vegas,longspec-guided,budgetdraft,vegas-reuse,suffix,auto
for build in $ends; do
    bench "text-t1-$build" "$build" 3 speed --methods "$methods" -o longspec-guided.widths=4,2,2,2,2 --text code,book \
        --context 16384,32768 --max-new-tokens 256 --temperature 1
    bench "text-t0-$build" "$build" 2 speed --methods "$methods" -o longspec-guided.widths=4,2,2,2,2 --text code \
        --context 16384,32768 --max-new-tokens 256
done

# Text that drafts badly: random letters, and words of an alphabet that the bundled target never saw.
python3 - "$out" << 'PYTHON'
import random, sys
rng, folder = random.Random(0), sys.argv[1]
letters = [chr(c) for c in (*range(33, 127), *range(0xA1, 0x17F))]
open(f"{folder}/noise.txt", "w").write("".join(rng.choices(letters, k=30000)))
greek = [chr(c) for c in range(0x3B1, 0x3CA)]
words = ["".join(rng.choices(greek, k=rng.randint(2, 9))) for _ in range(3000)]
open(f"{folder}/greek.txt", "w").write(" ".join(rng.choices(words, k=12000)))
PYTHON
for context in 512 4096; do
    bench "bad-text-$context" "$best" 2 speed --methods plain,vegas,longspec-guided,budgetdraft,medusa,suffix,auto \
        --prompt-file "$out/noise.txt" --prompt-file "$out/greek.txt" --context "$context" --max-new-tokens 256 \
        --temperature 1
done

# Speedups at a stated acceptance (an oracle's: figures of cost), alone and side by side; Transformers' own generate.
bench "oracle-vegas" "$best" 1 cost --methods plain,vegas --accept 5.5 --context 16384,32768 --max-new-tokens 128
bench "oracle-longspec" "$best" 1 cost --methods plain,longspec-guided --accept 3.5 -o longspec-guided.widths=1,1,1,1,1 \
    --context 32768 --max-new-tokens 128
bench "oracle-budgetdraft" "$best" 1 cost --methods plain,budgetdraft --accept 5.5 --context 32768 --max-new-tokens 128
bench "oracle-batch" "$best" 2 cost --methods plain,vegas --accept 5.5 --batch 8 --context 16384 --max-new-tokens 48
bench "stock" "$best" 2 cost --methods plain,hf-static --accept 5.5 --context 32768 --max-new-tokens 32 --repeat 3

# Last, because they take long: a real model where keys outweigh its weights, and eight texts side by side.
if longdraft fetch smollm2 > /dev/null; then
    for temperature in 1 0; do
        bench "smollm2-16k-t$temperature" "$best" 2 speed -m "$model" --rope yarn:2 --methods "plain,$copies,suffix,auto" \
            --text book --context 16000 --max-new-tokens 64 --temperature "$temperature"
    done
    bench "smollm2-batch" "$best" 3 speed -m "$model" --methods "plain,$copies,suffix" --text book --batch 8 --context 7168 \
        --max-new-tokens 32 --temperature 1 --repeat 3
    # shellcheck disable=SC2086
    bench "smollm2-peers-16k" "$best" 8 peers $binary -m smollm2 --rope yarn:2 --methods plain,suffix,auto --peers llama.cpp \
        --text book --context 16000 --max-new-tokens 64 --repeat 3
fi

# shellcheck disable=SC2046
set -- $(ls "$out"/*.jsonl 2> /dev/null)
if [ $# -gt 0 ]; then longdraft report "$@" --out "$out"; fi
exit $failed
