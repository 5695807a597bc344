#!/bin/sh
# Acceptance and speed of every method on SmolLM2: benchmarks/smollm2.sh [FOLDER], about an hour on two quiet cores.
# Appends to FOLDER/free.jsonl and FOLDER/given.jsonl; copied to benchmarks/records under the names in docs/smollm2.py,
# `python docs/smollm2.py` makes docs/results/smollm2.md of them. MEETING=FILE adds summaries of a meeting's transcript.
set -eu
out=${1:-runs/smollm2}
longdraft fetch smollm2
mkdir -p "$out"
python -c "from pydoc_data.topics import topics; print('\n\n'.join(map(topics.get, sorted(topics))))" >"$out/documentation.txt"
meeting=${MEETING:-}

free() { longdraft bench -m smollm2 --out "$out/free.jsonl" --context "$contexts" --max-new-tokens 96 "$@"; }
given() { longdraft bench -m smollm2 --task anchored --out "$out/given.jsonl" "$@"; }

contexts=${CONTEXTS:-1024,4096,7000}
trained=${TRAINED-longspec-chain,longspec,eagle3}
methods=${METHODS:-lookup,suffix,recycle,vegas,vegas-reuse,magicdec-stream,magicdec-snapkv${trained:+,$trained}}
fixed=$(echo "$methods" | sed 's/,/@pace=off,/g; s/$/@pace=off/')
for how in "--temperature 0" "--temperature 1" "--temperature 0.7 --top-p 0.9"; do
    for task in code book documentation ${meeting:+meeting}; do
        case $task in
        documentation) set -- --prompt-file "$out/documentation.txt" --ask "What does the with statement do?" ;;
        meeting) set -- --prompt-file "$meeting" --ask "Summarize this meeting." ;;
        *) set -- --text "$task" ;;
        esac
        # shellcheck disable=SC2086
        free "$@" $how --methods "plain,$fixed" --repeat 1
        # shellcheck disable=SC2086
        free "$@" $how --methods "plain,$methods,auto" --repeat "${REPEAT:-3}"
    done
done

for share in 0.02 0.04 0.07 0.15 0.25; do
    views=
    for method in vegas vegas@score=logits@rows=ends@reach=0 magicdec-stream recents random-picks; do
        views="$views${views:+,}$method@gamma=5@min_budget=16@keep_ratio=$share"
    done
    for context in 4096 7000; do
        given --text code,book --context "$context" --anchors 60 --warmup-rounds 1 --methods "$views"
        [ -z "$meeting" ] || given --prompt-file "$meeting" --context "$context" --anchors 60 --warmup-rounds 1 --methods "$views"
    done
done
