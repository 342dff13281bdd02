#!/usr/bin/env bash
# Installs a browser without a screen for the page's tests, where the machine has none (Debian; needs root).
set -euo pipefail
for name in chromium-headless-shell chromium google-chrome; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
"${as_root[@]}" apt-get -qq update
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get -qq install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null
