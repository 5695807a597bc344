#!/bin/sh
# Speed on a CPU with nothing beside it, by every build of the kernels that it can run: benchmarks/cpu.sh [FOLDER]
# Each step writes FOLDER/STEP.jsonl (default: runs/cpu), and FOLDER/report.md is made from all of them. A step whose file
# exists is skipped, so the same command continues a run. acceptance.sh measures acceptance.
#   MINUTES=40      steps that would not fit are left out, with a line that says so
#   SKIP=REGEXP     leaves out the steps whose name matches, like 'busy|peers'; ONLY=REGEXP runs only those that match
#   BUILDS="avx2"   these builds instead of all that the machine can run, best first
set -eu
out=${1:-runs/cpu}
here=$(dirname "$0")
minutes=${MINUTES:-40}
began=$(date +%s)
best=$(python3 -c "from longdraft.ops import native; print(*(k[1:] for k in native.NEEDS if native.opened(k)[0]))")
builds=${BUILDS:-$best}
[ -n "$builds" ] || { echo "cpu.sh: no build of the native kernels can run here" >&2; exit 2; }
best=${builds%% *}
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
bench() { # NAME BUILD MINUTES OPTIONS...
    name=$1 build=$2 need=$3
    shift 3
    step "$name" "$build" "$need" longdraft bench "$@"
}
offers() { longdraft "$1" --help 2> /dev/null | grep -q -e "$2"; }

# What a step costs in each build, alone and beside a busy process.
for build in $builds; do
    bench "steps-$build" "$build" 2 --task steps --context 8192,32768 --repeat 5
    step "busy-$build" "$build" 2 python3 "$here/busy.py" --context 8192 --seconds 0.5
done

# The real model, with its keys and values beyond the weights' size at 16K, beside other engines in the same run.
if longdraft --help | grep -q fetch && longdraft fetch smollm2; then
    methods=plain,vegas,suffix,auto
    if longdraft methods | grep -q quantspec; then methods=$methods,quantspec; fi
    peers=
    if offers bench --peers; then peers="--peers llama.cpp,transformers"; fi
    for build in $builds; do
        bench "smollm2-steps-$build" "$build" 2 -m smollm2 --text book --task steps --context 1024,7168 --repeat 3
    done
    # shellcheck disable=SC2086
    bench "smollm2-peers" "$best" 6 -m smollm2 --methods "$methods" $peers --text book --context 1024,4096,7168 \
        --max-new-tokens 64 --repeat 3
    # shellcheck disable=SC2086
    bench "smollm2-peers-16k" "$best" 5 -m smollm2 --rope yarn:2 --methods "$methods" $peers --text book --context 16000 \
        --max-new-tokens 64 --repeat 3
    for temperature in 0 1; do
        bench "smollm2-t$temperature" "$best" 4 -m smollm2 --methods "$methods" --text code,book --context 4096,7168 \
            --max-new-tokens 128 --repeat 3 --temperature "$temperature"
    done
fi

# What a user sees on held-out text, drafts adapted. Greedy text of a small model loops: read the sampled one too.
for build in $builds; do
    for temperature in 1 0; do
        bench "text-t$temperature-$build" "$build" 2 --methods plain,vegas,longspec-guided,vegas-reuse,suffix,auto \
            -o longspec-guided.widths=4,2,2,2,2 --text code,book --context 16384 --max-new-tokens 128 --repeat 3 \
            --temperature "$temperature"
    done
done

# Speedups at a stated acceptance (an oracle's: figures of cost).
bench "oracle-vegas" "$best" 3 --methods plain,vegas --accept 5.5 --shape 6x384 --context 8192,32768 --max-new-tokens 96
bench "oracle-longspec" "$best" 1 --methods plain,longspec-guided --accept 3.5 -o longspec-guided.widths=1,1,1,1,1 \
    --context 8192,32768 --max-new-tokens 128
bench "oracle-budgetdraft" "$best" 1 --methods plain,budgetdraft --accept 5.5 --context 4096,16384 --max-new-tokens 128
bench "oracle-batch" "$best" 2 --methods plain,vegas --accept 5.5 --batch 8 --context 16384 --max-new-tokens 48

# Beside Transformers' own generate, in both dtypes.
bench "stock" "$best" 2 --methods plain,vegas,hf-static,hf-dynamic --accept 5.5 --context 16384 --max-new-tokens 48
bench "stock-float32" "$best" 2 --methods plain,hf-static,hf-dynamic --dtype float32 --context 16384 --max-new-tokens 32

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
bench "bad-text" "$best" 4 --methods plain,vegas,longspec-guided,medusa,suffix,auto --prompt-file "$out/noise.txt" \
    --prompt-file "$out/greek.txt" --context 4096 --max-new-tokens 256 --temperature 1

# shellcheck disable=SC2046
set -- $(ls "$out"/*.jsonl 2> /dev/null)
if [ $# -gt 0 ]; then longdraft report "$@" --out "$out"; fi
exit $failed
