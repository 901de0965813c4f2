#!/bin/sh
# The official conformance suite against a running server.
# usage: conformance.sh URL
# NODE is Node 22 or later; SUITE is dist/index.js of the npm package @modelcontextprotocol/conformance@0.2.0-alpha.12.
set -eu
url=$1
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for revision in 2025-11-25 2026-07-28; do
    "${NODE:-node}" "$SUITE" server --url "$url" --requirements "$revision" --timeout 8000 -o "$out/$revision" \
        --expected-failures "$here/expected-failures-$revision.yml"
done
