# Sourced by the scripts beside it, which run in the repository root.

# have_tools PROGRAM...: whether all of them can be run.
have_tools() {
  local program
  for program in "$@"; do command -v "$program" >/dev/null 2>&1 || return 1; done
}

# install_tools PACKAGE...: tries to install Debian packages if this user may; silent if it fails.
# A lock on this file lets one script install at a time.
install_tools() {
  [ "$(id -u)" = 0 ] && have_tools apt-get || return 0
  { flock 9 && timeout 60 apt-get update &&
    DEBIAN_FRONTEND=noninteractive timeout 120 \
      apt-get install -y --no-install-recommends "$@"; } >/dev/null 2>&1 9<native/fuzz/tool.sh || true
}

# skip TEXT: ends the script, visibly, without failing.
skip() {
  echo "SKIPPED $1" >&2
  exit 0
}
