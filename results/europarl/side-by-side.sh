#!/usr/bin/env bash
# Several arms of equal-tokens.sh on one GPU, of which one trains while those before it translate.
#   WIDTH=half bash side-by-side.sh TEXT OUT ARM [ARM ...]       an ARM may be ARM:SEED
# Arms whose translations are in OUT are skipped. An arm that was interrupted resumes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) text=$1 out=$2
shift 2
mkdir -p "$out"
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
printf '%s\n' "$@" | xargs -P 2 -I{} bash -c 'one {}'
