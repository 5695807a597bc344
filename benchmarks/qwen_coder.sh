#!/bin/sh
# Speed of Qwen2.5-Coder 0.5B and 1.5B, trained on 32,768 positions: benchmarks/qwen_coder.sh [FOLDER]
# About 90 minutes on two cores.
# Appends to FOLDER/qwen-coder.jsonl, which is copied to benchmarks/records under the name in docs/qwen_coder.py; then
# `python docs/qwen_coder.py` makes docs/results/qwen-coder.md of it.
#
#   peers   plain decoding and two methods beside llama.cpp and OpenVINO GenAI, on source code
#   edit    the task `edit` beside the same engines with their own drafts
#   suites  methods on edit, repo, question and chat, greedy and at the recommended sampling
#   pair    the 1.5B with the 0.5B as its drafter
#   given   how many drafts the target accepts on given text, by the share of the keys that drafts read
#   yarn    64K tokens; YARN="2:60000 4:120000" has 128K too, TEXTS=code,book a second text (only if PARTS names it)
#
# PARTS, MODELS, CONTEXTS and SUITES choose among them. ALL=1 measures what takes longest as well, probably hours more: 30,000 tokens
# of the 1.5B, its suites, `edit` and given text at 30,000, chat and sampling there. Nothing else must run: llama.cpp's
# threads wait for each other in loops, so beside another process it is many times slower. It is built at first
# (LLAMA_SERVER=FILE: is there already; 20 minutes more), and OpenVINO GenAI is installed into FOLDER/openvino
# (OPENVINO=PYTHON: is there already).
set -eu
. "$(dirname "$0")/usage.sh"
out=${1:-runs/qwen-coder}
contexts=${CONTEXTS:-1024 8192 30000}
models=${MODELS:-0.5b 1.5b}
mkdir -p "$out"
for model in $models; do longdraft fetch "qwen2.5-coder-$model"; done

# MODEL MEASUREMENT OPTION...: a prompt that one command has read is loaded by the next.
bench() {
    model=$1 measurement=$2
    shift 2
    echo "load before: $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime)" >&2
    longdraft bench "$measurement" -m "qwen2.5-coder-$model" --prompt-cache "$out/prompts" --out "$out/qwen-coder.jsonl" "$@"
}

engines() {
    server=${LLAMA_SERVER:-$(python "$(dirname "$0")/build_llama_cpp.py")}
    openvino=${OPENVINO:-$out/openvino/bin/python}
    [ -x "$openvino" ] || python -m venv "$out/openvino"
    "$openvino" -c "import openvino_genai" 2>/dev/null ||
        "$openvino" -m pip install -q --disable-pip-version-check openvino-genai==2026.4.1.0
}

# MODEL CONTEXT MEASUREMENT OPTION...: llama.cpp with flash attention off at 1K only, where the two are closest.
beside() {
    model=$1 context=$2 rows="llama.cpp@fa=on,llama.cpp ngram-simple@fa=on,llama.cpp ngram-mod@fa=on"
    shift 2
    [ "$context" -gt 1024 ] || rows="$rows,llama.cpp@fa=off"
    bench "$model" "$@" --context "$context" --methods plain,suffix,auto --peers llama.cpp,openvino \
        --peer-llama-server "$server" --peer-openvino "$openvino" --peer-only "$rows,openvino,openvino prompt lookup"
}

for part in ${PARTS:-peers edit suites pair given}; do
    case $part in
    peers | edit) engines ;;
    esac
    for context in $contexts; do
        for model in $models; do
            [ -n "${ALL:-}" ] || case $part-$model-$context in
            *-1.5b-30000 | suites-1.5b-* | edit-1.5b-8192 | edit-*-30000 | given-*-30000) continue ;;
            esac
            case $part-$model in
            peers-*) beside "$model" "$context" peers --text code --max-new-tokens 64 --repeat 3 ;;
            edit-*) beside "$model" "$context" peers-tasks edit --instances 1 --max-new-tokens 192 ;;
            suites-*)
                for suite in ${SUITES:-edit repo question chat}; do
                    # The answer to `edit` is a whole file.
                    case $suite in edit) tokens=${EDIT_TOKENS:-512} ;; *) tokens=${TOKENS:-128} ;; esac
                    for how in "" --recommended; do
                        [ -n "${ALL:-}" ] || case $context-$suite$how in
                        30000-chat* | 30000-*--recommended) continue ;;
                        esac
                        # shellcheck disable=SC2086
                        bench "$model" tasks $suite --context "$context" $how --instances "${INSTANCES:-1}" \
                            --methods "${METHODS:-plain,suffix,recycle,vegas,auto}" --max-new-tokens "$tokens"
                    done
                done
                ;;
            pair-1.5b)
                bench 1.5b tasks repo --context "$context" --instances 1 --drafter qwen2.5-coder-0.5b \
                    --methods plain,sd,sd-sparse,budgetdraft,specextend,triforce,auto --max-new-tokens 256
                ;;
            given-0.5b)
                [ "$context" -gt 1024 ] || continue
                views=
                for share in 0.02 0.04 0.07 0.15; do
                    for method in vegas magicdec-stream random-picks recents; do
                        views="$views${views:+,}$method@gamma=5@min_budget=16@keep_ratio=$share"
                    done
                done
                bench 0.5b acceptance --text code --context "$context" --anchors "${ANCHORS:-40}" \
                    --warmup-rounds 1 --methods "$views"
                ;;
            esac
        done
    done
    if [ "$part" = yarn ]; then
        for pair in ${YARN:-2:60000}; do
            bench 0.5b speed --rope "yarn:${pair%:*}" --text "${TEXTS:-code}" --context "${pair#*:}" --max-new-tokens 64 --repeat 1 \
                --methods plain,vegas,magicdec-stream,quantspec
        done
    fi
done
