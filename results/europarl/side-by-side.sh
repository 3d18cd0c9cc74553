#!/usr/bin/env bash
# Several arms of equal-tokens.sh on one GPU at a time, shared by MPS. On an H200 two of half the width with 30 layers gain nothing.
#   WIDTH=half JOBS=4 bash side-by-side.sh TEXT OUT ARM [ARM ...]       an ARM may be ARM:SEED
# Arms whose translations are in OUT are skipped. An arm that was interrupted resumes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) text=$1 out=$2
shift 2
mkdir -p "$out"
export CUDA_MPS_PIPE_DIRECTORY=${CUDA_MPS_PIPE_DIRECTORY:-$out/mps} CUDA_MPS_LOG_DIRECTORY=${CUDA_MPS_LOG_DIRECTORY:-$out/mps}
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
nvidia-cuda-mps-control -d || true # it may be running, or missing: then the arms take turns
one() {
    local arm=${1%:*} seed=1
    [[ $1 = *:* ]] && seed=${1#*:}
    local name=$arm
    [ "$seed" = 1 ] || name=$arm-seed$seed
    [ -s "$out/$name/home/test.de" ] && return
    SHARED=1 SEED=$seed bash "$here/equal-tokens.sh" "$arm" "$text" "$out" > "$out/$name.txt" 2>&1 \
        && echo "$name done" || echo "$name failed: $out/$name.txt"
}
export -f one
export here text out
printf '%s\n' "$@" | xargs -P "${JOBS:-4}" -I{} bash -c 'one {}'
echo quit | nvidia-cuda-mps-control || true
