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

# Whether a step was done for this key; that it was done.
current() { [ "$(cat ".venv/octavo-$1" 2>/dev/null)" = "$2" ]; }
stamp() { echo "$2" >".venv/octavo-$1"; }

# As many compilers as there are cores, and 2 GB of memory for each: torch's headers are large.
jobs_here() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
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
