#!/bin/sh
# The server's figures on SmolLM2, beside llama.cpp's server if xllamacpp is installed: benchmarks/serve.sh [FILE.jsonl]
# Needs: pip install 'longdraft[serve]'. About fifteen minutes on two quiet cores; METHODS, CONTEXT and REPEAT choose less.
set -eu
longdraft fetch smollm2
peer=$(python -c "import xllamacpp" 2> /dev/null && echo "--peer llama.cpp" || true)
# shellcheck disable=SC2086
exec python "$(dirname "$0")/serve.py" --out "${1:-runs/serve.jsonl}" --methods "${METHODS:-plain,vegas,auto}" \
    --context "${CONTEXT:-4096}" --repeat "${REPEAT:-3}" $peer
