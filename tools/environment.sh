# Makes or refreshes the project's own environment in .venv; sourced by ./start and ./test.
# A stamp keeps the second call quick: it is made of everything the installation depends on.

fail() { printf 'jubako: %s\n' "$1" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer is needed and was not found; install it, or name it: PYTHON=/path/to/python ./start"
}

# Which build of torch serves this machine: cpu, cuda, cuda-volta (cards older than Turing) or rocm.
torch_build() {
  if [ -n "${JUBAKO_TORCH:-}" ]; then
    echo "$JUBAKO_TORCH"
  elif command -v nvidia-smi >/dev/null 2>&1 && capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -n | head -1) && [ -n "$capability" ]; then
    if [ "${capability%%.*}" -lt 7 ] || [ "$capability" = 7.0 ]; then echo cuda-volta; else echo cuda; fi
  elif [ -e /dev/kfd ]; then
    echo rocm
  else
    echo cpu
  fi
}

# The index that carries a build; torch's default package on Linux is the CUDA one.
install_torch() {
  local build=$1 index=https://download.pytorch.org/whl
  local quiet=(-q --no-compile --disable-pip-version-check) # what is used is compiled when it is imported
  case $build in
    cuda) "$VENV/bin/pip" install "${quiet[@]}" 'torch>=2.6' ;;
    cuda-volta) "$VENV/bin/pip" install "${quiet[@]}" --index-url "$index/cu126" 'torch>=2.6' ;;
    rocm) "$VENV/bin/pip" install "${quiet[@]}" --index-url "$index/rocm6.4" 'torch>=2.6' ;;
    cpu) "$VENV/bin/pip" install "${quiet[@]}" --retries 0 --timeout 10 --index-url "$index/cpu" 'torch==2.13.0' 2>/dev/null ||
         "$VENV/bin/pip" install "${quiet[@]}" 'torch==2.13.0' ;;
    *) fail "JUBAKO_TORCH is '$build'; it can be cpu, cuda, cuda-volta or rocm" ;;
  esac || fail "torch ($build build) could not be installed; see the message above"
}

# The packages of the dev extra alone, where the project itself is already installed: nothing is compiled again.
install_extras() {
  (cd "$ROOT" && "$VENV/bin/python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"]))') > "$VENV/dev.txt" &&
    "$VENV/bin/pip" install -q --no-compile --disable-pip-version-check -r "$VENV/dev.txt"
}

# prepare EXTRAS: EXTRAS is '' or '[dev]'.
prepare() {
  local extras=$1 python build stamp
  VENV="$ROOT/.venv"
  build=$(torch_build)
  stamp=$(cd "$ROOT" && { cat pyproject.toml CMakeLists.txt; find csrc -type f -print0 | sort -z | xargs -0 cat; echo "$build $ROOT"; } | sha256sum | cut -d' ' -f1)
  if [ "$(cat "$VENV/.stamp$extras" 2>/dev/null)" = "$stamp" ]; then return; fi
  python=$(find_python)
  command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 ||
    fail "a C++17 compiler is needed and was not found; install g++ or clang (Debian, Ubuntu: apt install g++)"
  echo "jubako: setting up $VENV ($build build of torch); this happens once and takes a few minutes" >&2
  [ -x "$VENV/bin/pip" ] || "$python" -m venv --clear "$VENV" || fail "python -m venv failed; on Debian and Ubuntu: apt install python3-venv"
  "$VENV/bin/python" -c 'import torch' 2>/dev/null || install_torch "$build"
  if [ -n "$extras" ] && [ "$(cat "$VENV/.stamp" 2>/dev/null)" = "$stamp" ]; then
    install_extras || fail "the test tools could not be installed; see the message above"
  else
    (cd "$ROOT" && "$VENV/bin/pip" install -q --no-compile --disable-pip-version-check -e ".$extras") || fail "the installation failed; see the message above"
  fi
  echo "$stamp" > "$VENV/.stamp$extras"
  [ -z "$extras" ] || echo "$stamp" > "$VENV/.stamp"
}
