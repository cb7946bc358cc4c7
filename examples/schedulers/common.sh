# shellcheck shell=bash
# What the scripts of this folder share; each of them sources it.
#
# FARREF_PROGRAM names the program to start, examples/ranks.rs as it was built; without it, cargo builds it.
# FARREF_REQUIRE_SCHEDULERS=1, as in `.ci/nightly`, makes an error of what is left out otherwise.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
scratch="$(mktemp -d "${TMPDIR:-/tmp}/farref-schedulers.XXXXXX")"
chmod 755 "$scratch"

# The group's secret, one for each run. Every launcher here hands the environment on.
FARREF_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export FARREF_TOKEN
# What the launchers leave behind goes with the folder.
export TMPDIR="$scratch"
# All that is started from here has this, whoever starts it, and nothing else has.
export FARREF_SCHEDULERS_RUN="$scratch"
# Nothing that another launcher has left here is to be heard.
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT FARREF_RANK FARREF_WORLD_SIZE FARREF_NAME FARREF_RENDEZVOUS \
    JOB_COMPLETION_INDEX "${!OMPI_@}" "${!PMIX_@}" "${!SLURM_@}" "${!TORCHELASTIC_@}"

say() {
    printf '%s: %s\n' "${0##*/}" "$*"
}

fail() {
    say "FAILED: $*" >&2
    exit 1
}

# leave_out WORDS: the script ends here, and well, unless that is forbidden.
leave_out() {
    if [[ -n "${FARREF_REQUIRE_SCHEDULERS:-}" ]]; then fail "$*"; fi
    say "LEFT OUT: $*"
    exit 0
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

# need COMMAND PACKAGE...: installs Debian's packages if the command is not there.
need() {
    local command="$1" log="$scratch/apt"
    shift
    PATH="$PATH:/usr/sbin:/sbin"
    if command -v "$command" >/dev/null; then return; fi
    if ! command -v apt-get >/dev/null; then
        leave_out "there is no $command, and no apt-get to install $* with"
    fi
    as_root true 2>/dev/null || leave_out "there is no $command: install $* as root (apt-get install $*)"
    say "installing $*"
    as_root apt-get update >"$log" 2>&1 || true
    # RUNLEVEL=1: the services of these packages are not started.
    if ! as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        fail "$* could not be installed"
    fi
    command -v "$command" >/dev/null || fail "$* is installed, and there is no $command"
}

# Sets program.
find_program() {
    program="${FARREF_PROGRAM:-}"
    if [[ -z "$program" ]]; then
        local target="${CARGO_TARGET_DIR:-$root/target}"
        (cd "$root" && cargo build --quiet -p farref-examples --example ranks)
        program="$target/debug/examples/ranks"
    fi
    program="$(realpath -- "$program")"
    [[ -x "$program" ]] || fail "there is no program $program"
}

# A port nobody listens at, below those that the system gives away by itself.
free_port() {
    local port
    while :; do
        port=$((10000 + RANDOM % 10000))
        if is_free "$port"; then
            echo "$port"
            return
        fi
    done
}

is_free() {
    ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# eventually SECONDS COMMAND...: until the command succeeds. False if it never does.
eventually() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        if ((SECONDS >= until)); then return 1; fi
        sleep 0.1
    done
}

# line_in FILE TEXT: whether one of its lines is this text.
line_in() {
    grep -qxF -- "$2" "$1" 2>/dev/null
}

# expect FILE TEXT...: every text is a line of the file, in this order.
expect() {
    local file="$1" text at=0 found
    shift
    for text in "$@"; do
        found="$(awk -v after="$at" -v text="$text" 'NR > after && $0 == text { print NR; exit }' "$file")"
        if [[ -z "$found" ]]; then
            cat "$file" >&2
            fail "no line \"$text\" where it belongs"
        fi
        at=$found
    done
}

# process_of FILE WORKER: the process that the worker is, as rank 0 has printed it.
process_of() {
    sed -n "s/^$2 is process //p" "$1" | tail -n 1
}

# kill_worker FILE WORKER: waits until rank 0 waits for a death, and kills that worker with SIGKILL.
kill_worker() {
    local victim
    if ! eventually 60 line_in "$1" "waiting for the death of one"; then
        cat "$1" >&2
        fail "the group did not come together"
    fi
    victim="$(process_of "$1" "$2")"
    # Nobody else's process has this number: it is one of the program, and of this run.
    [[ "$(readlink "/proc/$victim/exe")" == "$program" ]] || fail "process $victim is not $program"
    kill -KILL "$victim"
    say "process $victim ($2) was killed"
}

# show FILE: what was printed, indented.
show() {
    sed 's/^/    /' "$1"
}

# The processes that were started from here and still run.
ours() {
    local environ
    for environ in /proc/[0-9]*/environ; do
        if grep -qzxF "FARREF_SCHEDULERS_RUN=$scratch" "$environ" 2>/dev/null; then
            basename "$(dirname "$environ")"
        fi
    done
}

none_left() {
    [[ -z "$(ours)" ]]
}

# none_remain STATUS: waits until all have ended, and kills them if they do not. False if STATUS was 0 and they did not.
none_remain() {
    local left
    # In a trap, a bare `return` would return what was before it.
    if eventually 10 none_left; then return 0; fi
    left="$(ours)"
    # shellcheck disable=SC2086 # several numbers
    kill -KILL $left 2>/dev/null || true
    if (($1 != 0)); then return 0; fi
    say "FAILED: these did not end by themselves: ${left//$'\n'/ }" >&2
    return 1
}

# has_ended PROCESS: whether this child of the script runs no more.
has_ended() {
    ! kill -0 "$1" 2>/dev/null
}

# Two hosts, as namespaces of this machine: each has interfaces, addresses, a name and a hosts file of its own.
hosts=()   # their names
keepers=() # of each, the process that keeps its namespaces

# host NAME: starts the process that keeps the namespaces of a host, with this name and the hosts file. Ctrl-C is not for it.
host() {
    # shellcheck disable=SC2016 # expanded over there
    setsid unshare --net --uts --mount --propagation private sh -c '
        hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && touch "$3" && exec sleep infinity
    ' sh "$1" "$scratch/hosts" "$scratch/$1.up" >"$scratch/$1.log" 2>&1 </dev/null &
    hosts+=("$1")
    keepers+=("$!")
    eventually 10 test -e "$scratch/$1.up"
}

# on HOST COMMAND...: runs a command on the first (0) or second (1) host.
on() {
    local host="$1"
    shift
    if ((${#keepers[@]} == 0)); then
        "$@"
    else
        nsenter --target "${keepers[host]}" --net --uts --mount --wd="$PWD" "$@"
    fi
}

# Two hosts with a cable between them, host1 and host2; false where that is not permitted. Their addresses are of the block
# for tests between networks (RFC 2544).
two_hosts() {
    ((EUID == 0)) || return 1
    if cable 2>"$scratch/hosts.err"; then return 0; fi
    local keeper
    for keeper in "${keepers[@]}"; do kill "$keeper" 2>/dev/null || true; done
    hosts=()
    keepers=()
    return 1
}

cable() {
    printf '%s\n' "127.0.0.1 localhost" "198.18.0.1 host1" "198.18.0.2 host2" >"$scratch/hosts"
    host host1 && host host2 || return 1
    on 0 ip link add cable type veth peer name cable netns "${keepers[1]}" || return 1
    on 0 ip address add 198.18.0.1/30 dev cable && on 0 ip link set cable up || return 1
    on 1 ip address add 198.18.0.2/30 dev cable && on 1 ip link set cable up
}
