#!/bin/sh
# Acceptance and speed of every method on SmolLM2: benchmarks/smollm2.sh [FOLDER], an hour or two on two quiet cores.
# Appends to FOLDER/free.jsonl and FOLDER/given.jsonl; copied to benchmarks/records under the names in docs/smollm2.py,
# `python docs/smollm2.py` makes docs/results/smollm2.md of them. MEETING=FILE adds a meeting's transcript.
# TASKS, CONTEXTS, METHODS, HOW, REPEAT and SHARES choose less. ROPE=yarn:4 extends the model's positions, BATCH=8 decodes 8 rows.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/smollm2}
. "$(dirname "$0")/texts.sh"
contexts=${CONTEXTS:-1024,4096,7000}
methods=${METHODS:-lookup,suffix,recycle,vegas,vegas-reuse,magicdec-stream,magicdec-snapkv,longspec-chain,longspec@nodes=8@gamma=3,eagle3@topk=4@levels=3@nodes=8}
fixed=$(echo "$methods" | sed 's/,/@pace=off,/g; s/$/@pace=off/')

free() {
    longdraft bench speed -m smollm2 ${ROPE:+--rope "$ROPE"} ${BATCH:+--batch "$BATCH"} --out "$out/free.jsonl" \
        --context "$contexts" --max-new-tokens "${TOKENS:-96}" "$@"
}
given() { longdraft bench acceptance -m smollm2 --out "$out/given.jsonl" --anchors "${ANCHORS:-60}" "$@"; }

for how in ${HOW:-greedy T0.7 T1}; do
    for task in $tasks; do
        sampled_as "$how" text_of "$task" free --methods "plain,$fixed" --repeat 1
        sampled_as "$how" text_of "$task" free --methods "plain,$methods,auto" --repeat "${REPEAT:-3}"
    done
done

# The guided view and its controls: picks after a verification, and picks by the prompt's last token alone.
for share in ${SHARES-0.02 0.04 0.07 0.15 0.25}; do
    views=
    for method in vegas vegas@score=logits@rows=ends@reach=0 magicdec-stream recents random-picks; do
        views="$views${views:+,}$method@gamma=5@min_budget=16@keep_ratio=$share"
    done
    for rounds in 1 0; do
        given --text code,book --context 4096 --warmup-rounds "$rounds" --methods "$views"
        [ -z "$meeting" ] || given --prompt-file "$meeting" --context 4096 --warmup-rounds "$rounds" --methods "$views"
    done
done
