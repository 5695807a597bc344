#!/bin/sh
# The default beside single methods and plain decoding on tasks: benchmarks/default_tasks.sh [FOLDER], two hours on two cores.
# Methods take turns at each step, so that a machine whose speed changes is no matter. Appends to FOLDER/tasks.jsonl, of which
# `python benchmarks/default_table.py FOLDER/tasks.jsonl` makes tables. MODELS, CONTEXTS, TASKS, HOW, NEW and REPEAT choose less.
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/default}
mkdir -p "$out"

bench() {
    for task in ${TASKS:-copy edit code quote qa summary repo question chat}; do
        longdraft bench tasks "$task" -m "$model" --instances 1 --max-new-tokens "${NEW:-96}" --repeat "${REPEAT:-3}" --by-step \
            --prompt-cache "$out/prompts" --out "$out/tasks.jsonl" "$@"
    done
}

for model in ${MODELS:-bundled smollm2 qwen2.5-coder-0.5b qwen2.5-coder-1.5b}; do
    methods="plain,suffix,vegas,auto"
    contexts="1024,8192,30000"
    sampled="--recommended"
    case $model in
    bundled) contexts=1024; sampled="--temperature 0.7 --top-p 0.9" ;;
    smollm2) methods="$methods,longspec"; contexts="1024,7000"; sampled="--temperature 0.7 --top-p 0.9" ;;
    esac
    for how in ${HOW:-greedy sampled}; do
        draw=""
        if [ "$how" = sampled ]; then draw=$sampled; fi
        # shellcheck disable=SC2086 # several words
        bench --methods "$methods" --context "${CONTEXTS:-$contexts}" $draw
    done
done
