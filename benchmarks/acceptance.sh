#!/bin/sh
# Acceptance on held-out text beside the controls, for every drafter: benchmarks/acceptance.sh [RECORDS.jsonl]
# Appends to RECORDS and writes report.md beside it. It takes long; speed plays no part in it.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/acceptance.jsonl}
bench() { longdraft bench acceptance --text code,book --out "$out" "$@"; }

views=vegas,vegas@score=logits@rows=ends@reach=0,magicdec-stream,random-picks,recents
blocks="-o longspec.widths=4,2,2,2,2 -o longspec-guided.widths=4,2,2,2,2"
for temperature in 0 1; do
    bench --methods "$views" --context 4096,8192,16384,32768 --warmup-rounds 1 --temperature "$temperature"
    # shellcheck disable=SC2086
    bench --methods longspec-chain,longspec,longspec-guided,medusa,tokenswift $blocks --context 8192 --temperature "$temperature"
    # these drafters run their own prefill at each anchor, so there are fewer anchors
    bench --methods eagle3,sd,sd-sparse@budget=256,budgetdraft@budget=256,budgetdraft@budget=2048 \
        --context 8192 --anchors 60 --temperature "$temperature"
done
longdraft report "$out" --out "$(dirname "$out")"
