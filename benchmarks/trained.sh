#!/bin/sh
# Trained drafters on held-out text: benchmarks/trained.sh [FOLDER], 25 minutes on two quiet cores.
# Appends to FOLDER/trained.jsonl, of which `python benchmarks/trained_table.py FOLDER/trained.jsonl` makes tables.
# DFLASH=FOLDER adds DFlash's block, MEETING=FILE a meeting's transcript. TASKS, CONTEXTS, METHODS, DEFAULTS and REPEAT choose less.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/trained}
longdraft fetch smollm2
mkdir -p "$out"
python -c "from pydoc_data.topics import topics; print('\n\n'.join(map(topics.get, sorted(topics))))" >"$out/documentation.txt"
meeting=${MEETING:-}
tasks=${TASKS-documentation code book ${meeting:+meeting}}
# Drafts of fixed shape: tokens per step, and speed where every step drafts.
fixed=${METHODS-eagle3@topk=1@levels=4@nodes=6,eagle3@topk=4@levels=4@nodes=13,longspec-chain@gamma=5,longspec@nodes=12@gamma=5,longspec-guided,medusa@nodes=6,medusa@nodes=12,budgetdraft@gamma=3@budget=256,budgetdraft@gamma=3@budget=1024,tokenswift}
defaults=${DEFAULTS-eagle3,longspec,medusa,budgetdraft,tokenswift,suffix,vegas,auto}

bench() {
    longdraft bench -m smollm2 --out "$out/trained.jsonl" --context "${CONTEXTS:-4096}" --max-new-tokens "${TOKENS:-256}" "$@"
}

for task in $tasks; do
    case $task in
    documentation) set -- --prompt-file "$out/documentation.txt" --ask "What does the with statement do?" ;;
    meeting) set -- --prompt-file "$meeting" --ask "Summarize this meeting." ;;
    *) set -- --text "$task" ;;
    esac
    bench "$@" --methods "plain,$(echo "$fixed" | sed 's/,/@pace=off,/g; s/$/@pace=off/')" -o longspec-guided.widths=1,1,1,1,1 --repeat "${REPEAT:-3}"
    bench "$@" --methods "plain,$defaults" --repeat "${REPEAT:-3}"
    if [ -n "${DFLASH:-}" ]; then
        bench "$@" --methods plain,dflash@gamma=4@pace=off,dflash@nodes=12@pace=off,dflash --drafter "$DFLASH" --repeat "${REPEAT:-3}"
    fi
done
