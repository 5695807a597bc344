#!/bin/sh
# Trained drafters on held-out text: benchmarks/trained.sh [FOLDER], 20 minutes on two quiet cores.
# Appends to FOLDER/trained.jsonl; copied to benchmarks/records under the name in docs/measured.py, `python docs/smollm2.py`
# makes a section of docs/results/smollm2.md of it. MEETING=FILE adds a meeting's transcript. TASKS, CONTEXTS, METHODS, BUILDS,
# TOKENS, HOW and REPEAT choose less or more.
# longdraft-drafters has eagle3 and glide alone. Put smollm2/dflash, smollm2/medusa and smollm2/heads, trained as docs/drafters.md
# says, beside them to measure these methods too: METHODS=dflash@gamma=4,dflash@nodes=12,medusa@nodes=12,tokenswift.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/trained}
. "$(dirname "$0")/texts.sh"
methods=${METHODS:-eagle3@topk=1@levels=4@nodes=6,eagle3@topk=4@levels=4@nodes=13,eagle3,longspec-chain,longspec@nodes=12@gamma=5,longspec-guided,suffix,vegas}
fixed=$(echo "$methods" | sed 's/,/@pace=off,/g; s/$/@pace=off/')

bench() {
    longdraft bench speed -m smollm2 --out "$out/trained.jsonl" --context "${CONTEXTS:-4096}" --max-new-tokens "${TOKENS:-256}" "$@"
}

for build in ${BUILDS:-best}; do
    [ "$build" = best ] || export LONGDRAFT_NATIVE="$build"
    for how in ${HOW:-greedy T0.7}; do
        for task in $tasks; do
            sampled_as "$how" text_of "$task" bench --methods "plain,$fixed" --repeat 1
            sampled_as "$how" text_of "$task" bench --methods "plain,$methods,auto" --repeat "${REPEAT:-3}"
        done
    done
done
