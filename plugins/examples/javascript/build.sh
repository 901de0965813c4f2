#!/bin/sh
# sh build.sh [OUT.wasm]
set -eu
. "$(dirname "$0")/../toolchains.sh"
out=$(absolute "${1:-slug.wasm}")
from_npm @bytecodealliance/componentize-js 0.23.0
cd "$here"
node "$npm/src/cli.js" slug.js --wit wit --out "$out"
