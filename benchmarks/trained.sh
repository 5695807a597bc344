#!/bin/sh
# Trained drafters on held-out text: benchmarks/trained.sh [FOLDER], 30 minutes on two quiet cores.
# Appends to FOLDER/trained.jsonl; copied to benchmarks/records under the name in docs/measured.py, `python docs/smollm2.py`
# makes a section of docs/results/smollm2.md of it. MEETING=FILE adds a meeting's transcript. TASKS, CONTEXTS, METHODS, TOKENS,
# HOW and REPEAT choose less.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/trained}
longdraft fetch smollm2
mkdir -p "$out"
python -c "from pydoc_data.topics import topics; print('\n\n'.join(map(topics.get, sorted(topics))))" >"$out/documentation.txt"
meeting=${MEETING:-}
methods=${METHODS:-eagle3@topk=1@levels=4@nodes=6,eagle3@topk=4@levels=4@nodes=13,eagle3,longspec-chain,longspec@nodes=12@gamma=5,longspec-guided,dflash@gamma=4,dflash@nodes=12,medusa@nodes=12,tokenswift,suffix,vegas}
fixed=$(echo "$methods" | sed 's/,/@pace=off,/g; s/$/@pace=off/')

for how in ${HOW:-greedy T0.7}; do
    case $how in
    greedy) how="--temperature 0" ;;
    T0.7) how="--temperature 0.7 --top-p 0.9" ;;
    esac
    for task in ${TASKS-documentation code book ${meeting:+meeting}}; do
        case $task in
        documentation) set -- --prompt-file "$out/documentation.txt" --ask "What does the with statement do?" ;;
        meeting) set -- --prompt-file "$meeting" --ask "Summarize this meeting." ;;
        *) set -- --text "$task" ;;
        esac
        # shellcheck disable=SC2086
        set -- "$@" $how -m smollm2 --out "$out/trained.jsonl" --context "${CONTEXTS:-4096}" --max-new-tokens "${TOKENS:-256}"
        longdraft bench "$@" --methods "plain,$fixed" --repeat 1
        longdraft bench "$@" --methods "plain,$methods,auto" --repeat "${REPEAT:-3}"
    done
done
