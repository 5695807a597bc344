#!/bin/sh
# Speed beside llama.cpp at its best, on SmolLM2's GGUF file: benchmarks/llama_cpp.sh [FILE.jsonl]
# Builds llama.cpp for this processor at first (20 minutes), then measures it with flash attention on and off and each kind
# of its own speculation, and the wheel (pip install 'longdraft[peers]'). About 8 minutes on two cores with nothing beside
# it: llama.cpp's threads wait for each other in loops, so beside another process it is many times slower.
# CONTEXT, REPEAT, TOKENS and METHODS choose less. The record goes to benchmarks/records under the name in docs/peers.py;
# then `python docs/peers.py` and `python docs/headlines.py` write the pages.
set -eu
. "$(dirname "$0")/usage.sh"
server=${LLAMA_SERVER:-$(python "$(dirname "$0")/build_llama_cpp.py")}
longdraft fetch smollm2
mkdir -p "$(dirname "${1:-runs/llama-cpp.jsonl}")"
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg 2> /dev/null || uptime)" >&2
longdraft bench peers -m smollm2 --methods "${METHODS:-plain,suffix,auto}" --peers llama.cpp --peer-llama-server "$server" \
    --text book --context "${CONTEXT:-1024,4096,7168}" --max-new-tokens "${TOKENS:-64}" --repeat "${REPEAT:-5}" \
    --out "${1:-runs/llama-cpp.jsonl}"
