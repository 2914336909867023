#!/usr/bin/env bash
# Measures one commit and judges it. The user page is doc/ci.md; the composite action beside this file
# runs the same script, and so does a test, in a scratch repository.
#
#   recipe.sh pull-request    measure, accept, collect, gate against the base branch's history
#   recipe.sh main-branch     measure, accept, collect, persist, gate by what the history then says
#
# Ends as `nvx perf gate` does: 0 passed, 1 regression, 2 bad input, 3 another kind of host,
# 75 unfit to measure now.
#
# Settings (environment):
#   HISTORY          the history file in this repository; its name says what it is about   required
#   BASE_REF         pull-request: revision whose history is the base                      origin/main
#   MAIN_BRANCH      main-branch: the only branch that rows are persisted on               main
#   NVX              the measured and measuring program                                    nvx
#   NVX_MEASURE      command that leaves DIR/acceptance.json; gets DIR as last argument
#   RUN_DIR          where everything of this run is kept                                  target/performance
#   RUN_ATTEMPT      this run's number; a rerun has another one                            1
#   SUMMARY          file that verdicts are appended to, as Markdown                       RUN_DIR's summary.md
#   HEAD_REPOSITORY  pull-request: repository that the branch is of; a fork is refused
#   PUSH             main-branch: push the history to this remote; empty commits only
set -euo pipefail

HISTORY=${HISTORY:?names the history file}
BASE_REF=${BASE_REF:-origin/main}
MAIN_BRANCH=${MAIN_BRANCH:-main}
NVX=${NVX:-nvx}
RUN_DIR=${RUN_DIR:-target/performance}/attempt-${RUN_ATTEMPT:-${GITHUB_RUN_ATTEMPT:-1}}
SUMMARY=${SUMMARY:-${GITHUB_STEP_SUMMARY:-$RUN_DIR/summary.md}}
HOSTS=${HISTORY%.csv}.hosts.jsonl
SUSPECT=75

say() {
    echo "recipe: $*" >&2
}

# What `nvx bench lifecycle --accept` does: measures, once more if the first attempt is unstable, keeps
# both attempts, and leaves acceptance.json only if one of them may be accepted.
measure() {
    local directory=$1 commit
    commit=$(git rev-parse HEAD)
    mkdir -p "$directory"
    rm -f "$directory/acceptance.json"
    if [ -n "${NVX_MEASURE:-}" ]; then
        $NVX_MEASURE "$directory"
    else
        "$NVX" bench lifecycle --commit "$commit" --output "$directory/result.json" --accept "$directory"
    fi
}

# Rows under the names that the history has.
collect() {
    local directory=$1
    "$NVX" perf collect "$directory/acceptance.json" --history "$HISTORY" --out "$directory/rows.csv"
}

# The base branch's history and hosts as they are there; a file that is not there is not there here.
take_base() {
    local file
    rm -rf "$RUN_DIR/base"
    mkdir -p "$RUN_DIR/base"
    for file in "$HISTORY" "$HOSTS"; do
        if git cat-file -e "$BASE_REF:./$file" 2> /dev/null; then
            git cat-file blob "$BASE_REF:./$file" > "$RUN_DIR/base/$(basename "$file")"
        fi
    done
}

gate() {
    "$NVX" perf gate --base "$RUN_DIR/base/$(basename "$HISTORY")" --candidate "$RUN_DIR/rows.csv" \
        --candidate-history "$HISTORY" --summary "$SUMMARY" "$@"
}

pull_request() {
    if [ -n "${HEAD_REPOSITORY:-}" ] && [ "$HEAD_REPOSITORY" != "${GITHUB_REPOSITORY:-}" ]; then
        say "the branch is of $HEAD_REPOSITORY: a fork's code is not measured here"
        return 2
    fi
    git rev-parse --verify --quiet "$BASE_REF^{commit}" > /dev/null || {
        say "there is no $BASE_REF: fetch the base branch first"
        return 2
    }
    take_base
    measure "$RUN_DIR"
    collect "$RUN_DIR"
    local status=0
    gate || status=$?
    if [ "$status" -eq "$SUSPECT" ]; then
        # One point has no later commits that could confirm it: a second measurement does.
        say "suspect: measuring once more"
        measure "$RUN_DIR/again"
        collect "$RUN_DIR/again"
        status=0
        gate --again "$RUN_DIR/again/rows.csv" || status=$?
    fi
    return "$status"
}

main_branch() {
    local branch
    branch=$(git symbolic-ref --quiet --short HEAD || echo "${GITHUB_REF_NAME:-}")
    if [ "$branch" != "$MAIN_BRANCH" ]; then
        say "rows are persisted on $MAIN_BRANCH only, this is ${branch:-no branch}"
        return 2
    fi
    measure "$RUN_DIR"
    collect "$RUN_DIR"
    mkdir -p "$(dirname "$HISTORY")"
    "$NVX" perf persist "$HISTORY" "$RUN_DIR/rows.csv"
    git add -- "$HISTORY"
    [ ! -e "$HOSTS" ] || git add -- "$HOSTS"
    if ! git diff --cached --quiet; then
        git commit --quiet -m "Performance of $(git rev-parse --short HEAD) [skip ci]"
        [ -z "${PUSH:-}" ] || git push --quiet "$PUSH" "HEAD:refs/heads/$MAIN_BRANCH"
    fi
    # A regression is persisted as well, or no later commit could confirm it. A suspect is not the end.
    local status=0
    "$NVX" perf gate --replay "$HISTORY" --summary "$SUMMARY" || status=$?
    [ "$status" -ne "$SUSPECT" ] || status=0
    return "$status"
}

mkdir -p "$RUN_DIR"
case "${1:-}" in
    pull-request) pull_request ;;
    main-branch) main_branch ;;
    *)
        say "expected pull-request or main-branch"
        exit 2
        ;;
esac
