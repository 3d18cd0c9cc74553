#!/usr/bin/env bash
# The first ten minutes on a GPU after changes that were made without one: the GPU tests, the main rows of train.py, the demo.
#   bash benchmarks/gpu_check.sh OUT
# OUT gets the logs as they come: summary.txt, a log of each group of tests, train.json and demo.txt. A failure or a stage that
# takes too long does not stop the next stage. Settings are environment variables:
#   LIMIT=580    seconds for everything, of which TESTS=270 are for the tests
#   MINUTES=2.5  for the demo, of which all but 35 s are for training
#   CORPUS       a folder of `deepnmt corpus homeassistant --languages en de --out CORPUS`, where the demo cannot download it
#   DEVICE=cpu   tries this file without a GPU: no tests, tiny models
set -uo pipefail
[ $# = 1 ] || { echo "usage: bash benchmarks/gpu_check.sh OUT" >&2; exit 2; }
mkdir -p "$1" || exit
out=$(cd "$1" && pwd)
corpus=${CORPUS:+$(realpath "$CORPUS")}
cd "$(dirname "$0")/.." || exit
limit=${LIMIT:-580} tests=${TESTS:-270} minutes=${MINUTES:-2.5} device=${DEVICE:-cuda}
python=$(command -v python || command -v python3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

note() { printf '%4d s  %s\n' "$SECONDS" "$*" | tee -a "$out/summary.txt"; }
# An interrupt, so that pytest still prints what has failed; a shell's background jobs would ignore it.
within() { env --default-signal=INT timeout -s INT -k 15 "$(($1 > 0 ? $1 : 1))" "${@:2}"; }

: > "$out/summary.txt"
note "$(git log -1 --format='commit %h' 2> /dev/null || echo 'no commit')"
note "$($python -c 'import torch
print("torch", torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "without a GPU")')"
missing=$($python -c 'import importlib.util as u
print(*(name for name in "pytest hypothesis safetensors sentencepiece sacrebleu sacremoses rich".split() if not u.find_spec(name)))')
[ -z "$missing" ] || note "packages that are not installed here: $missing"

# Settings of plugins that are not installed are no error; pytest-benchmark warns where it meets xdist, which would be one.
options=(-p no:benchmark -m gpu --tb=short -rfE -W ignore::pytest.PytestConfigWarning)
$python -c 'import xdist' 2> /dev/null && options+=(-n 3)
check() { # NAME PATH...: the GPU tests of these paths
    local name=$1 files
    mapfile -t files < <(grep -rlE --include='test_*.py' 'mark\.gpu' "${@:2}")
    TORCHINDUCTOR_COMPILE_THREADS=2 within "$tests" "$python" -m pytest "${options[@]}" "${files[@]}" > "$out/tests-$name.txt" 2>&1
    note "tests of $name: status $?, $(tail -n 1 "$out/tests-$name.txt")"
}
# Side by side: most of their time goes into compiling, on the host; each would start a compiler for every core.
check engine tests/training/test_graph_engine.py &
check training tests/training/test_training_gpu.py tests/training/test_recorded_updates.py &
check model tests/model/test_gpu.py &
check kernels tests/model/kernels &
check decoding tests/decoding tests/conversion tests/analysis tests/data &
wait
grep -hE '^(FAILED|ERROR) ' "$out"/tests-*.txt | cut -c 1-200 | head -n 60 | tee -a "$out/summary.txt"

demo=$($python -c "print(int(60 * $minutes) + 20)")
rows=("dlcl-30l 32k" "pre-30l 32k" "dlcl-100l 32k") tiny=()
[ "$device" = cuda ] || tiny=(--tiny)
note "training"
left=$((limit - SECONDS - demo))
within $left "$python" benchmarks/train.py --only "${rows[@]}" --seconds $left --json "$out/train.json" "${tiny[@]}" 2>&1 \
    | tee -a "$out/summary.txt"
note "demo"
mkdir "$work/demo"
[ -z "$corpus" ] || cp -r "$corpus" "$work/demo/corpus-de"
within $((limit - SECONDS)) "$python" -m deepnmt demo --minutes "$minutes" --device "$device" --out "$work/demo" > "$out/demo.txt" 2>&1
note "demo: status $?"
grep -E 'updates done|trained in|BLEU|chrF' "$out/demo.txt" | tee -a "$out/summary.txt"
grep -q BLEU "$out/demo.txt" || tail -n 5 "$out/demo.txt" | tee -a "$out/summary.txt"
note "done"
