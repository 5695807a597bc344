#!/bin/sh
# Throughput and latency of the server on SmolLM2: benchmarks/serve.sh [FILE.jsonl]
# Beside llama.cpp's server: LLAMA_SERVER=$(python benchmarks/build_llama_cpp.py), and the wheel's if xllamacpp is installed.
# Needs: pip install 'longdraft[serve]'. About fifteen minutes on two quiet cores; METHODS, CONTEXT and REPEAT choose less.
set -eu
. "$(dirname "$0")/usage.sh"
longdraft fetch smollm2
wheel=$(python -c "import xllamacpp" 2> /dev/null && echo "--wheel" || true)
# shellcheck disable=SC2086
exec python "$(dirname "$0")/serve.py" --out "${1:-runs/serve.jsonl}" --methods "${METHODS:-plain,vegas,auto}" \
    --context "${CONTEXT:-4096}" --repeat "${REPEAT:-3}" \
    ${LLAMA_SERVER:+--peer-llama-server "$LLAMA_SERVER"} $wheel
