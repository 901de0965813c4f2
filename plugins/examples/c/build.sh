#!/bin/sh
# sh build.sh [OUT.wasm], and find-lines.toml beside it
set -eu
. "$(dirname "$0")/../toolchains.sh"
out=$(absolute "${1:-find-lines.wasm}")
from_pip ziglang 0.17.1
cd "$here"
core=$(mktemp)
trap 'rm -f "$core"' EXIT
"$tools/ziglang/bin/python" -m ziglang cc -target wasm32-wasi -Os -s find-lines.c -o "$core"
as_program "$core" "$out"
manifest=$(dirname "$out")/$(basename "$out" .wasm).toml
[ "$manifest" -ef find-lines.toml ] || cp find-lines.toml "$manifest"
