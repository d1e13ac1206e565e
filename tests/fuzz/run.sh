#!/bin/sh
# run.sh SECONDS BUILD_DIR [TARGET...]: runs these fuzz targets or all of them, two at a time, and writes BUILD_DIR/fuzz.json for
# tests/summary.py. Inputs have up to 64 KiB; long_seeds.py makes seeds of that size. What is found stays in BUILD_DIR/fuzz/TARGET. Exits with 1 where something was found.
set -u
seconds=$1
cd "$(dirname "$0")/../.." || exit 2
build=$(cd "$2" && pwd) || exit 2
here=$PWD/tests/fuzz
shift 2
if [ $# -eq 0 ]; then
    for target in "$here"/fuzz_*.c; do
        name=$(basename "$target" .c)
        set -- "$@" "${name#fuzz_}"
    done
fi

run_one()
{
    name=$1
    work=$build/fuzz/$name
    mkdir -p "$work/corpus"
    rm -rf "$work/long"
    python3 "$here/long_seeds.py" "$name" "$here/corpus/$name" "$work/long" || exit 2
    "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
        -artifact_prefix="$work/" -print_final_stats=1 "$work/corpus" "$here/corpus/$name" "$work/long" >"$work/log" 2>&1
    echo $? >"$work/rc"
}

first=
for name in "$@"; do
    run_one "$name" &
    if [ -z "$first" ]; then
        first=$!
    else
        wait
        first=
    fi
done
wait

clean=0
separator=
{
    echo '['
    for name in "$@"; do
        work=$build/fuzz/$name
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
        ok=false
        [ "$(cat "$work/rc")" = 0 ] && ok=true
        printf '%s {"name": "%s", "runs": %s, "clean": %s}' "$separator" "$name" "${runs:-0}" "$ok"
        separator=,
    done
    echo ']'
} >"$build/fuzz.json"
for name in "$@"; do
    if [ "$(cat "$build/fuzz/$name/rc")" != 0 ]; then
        clean=1
        echo "fuzz $name:"
        tail -n 40 "$build/fuzz/$name/log"
    fi
done
exit $clean
