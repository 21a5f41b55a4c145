# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share; sourced by them, in the root of the clone.

say() { printf '==== %4d s  %s\n' "$SECONDS" "$*"; }
die() {
  echo "error: $*" >&2
  exit 1
}

# A hash of standard input and of the files (and folders of files) named.
hash_of() {
  { cat; find "$@" -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -d ' ' -f 1
}

# Lets ccache, where it is installed, keep files that use a precompiled header.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}

# Whether a step was done for this key; that it was done.
current() { [ "$(cat ".venv/octavo-$1" 2>/dev/null)" = "$2" ]; }
stamp() { echo "$2" >".venv/octavo-$1"; }

# As many compilers as there are cores, and 2 GB of memory for each: torch's headers are large.
jobs_here() {
  local cores memory limit
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
  for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do  # of a container
    [ -r "$limit" ] || continue
    limit=$(awk '/^[0-9]+$/ {printf "%d", $1 / 2000000000}' "$limit")
    [ -z "$limit" ] || [ "$limit" -ge "$memory" ] || memory=$limit
  done
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# unexpected_skips FLAGS <LOG: the tests that ctest skipped though the CPU with these flags has their instruction set.
unexpected_skips() {
  local flags=" $1 " may_skip=none
  has_flags() { local flag; for flag in "$@"; do [[ $flags == *" $flag "* ]] || return 1; done; }
  has_flags avx2 fma || may_skip+='|avx2'
  has_flags avx512f avx512bw avx512vl avx512dq || may_skip+='|avx512'
  sed -nE 's/^\t *[0-9]+ - (.+) \((Skipped|Not Run|Disabled)\)$/\1/p' |
    grep -vE "^octavo_core_tests\.($may_skip)$" || true
}

# Where `pip install` builds: pyproject.toml's build/{wheel_tag}.
wheel_build_dir() {
  .venv/bin/python - <<'PYTHON'
import sys
import sysconfig
python = f"cp{sys.version_info.major}{sys.version_info.minor}"
print(f"build/{python}-{python}-" + sysconfig.get_platform().replace("-", "_").replace(".", "_"))
PYTHON
}
