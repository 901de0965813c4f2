#!/bin/sh
# sh build.sh [OUT.wasm]
set -eu
. "$(dirname "$0")/../toolchains.sh"
out=$(absolute "${1:-text.wasm}")
from_pip componentize-py 0.25.1
cd "$here"
"$tools/componentize-py/bin/componentize-py" --quiet --wit-path wit --world text componentize app --output "$out"
