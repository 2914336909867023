# Ctrl-C at a running VM, as a user's: Wine makes it of the signal that a terminal sends. The output is
# that of a test binary with one test. $1: nvx.exe.
place=$(mktemp -d)
mkdir "$place/scratch"
mkfifo "$place/input"
# Held open, so that the guest's input does not end.
exec 3<> "$place/input"
wine "$1" run --backend soft --guest probe --memory 16M --scratch "Z:$place/scratch" \
    <&3 > "$place/output" 2>&1 &
monitor=$!
waited=0
until grep -q PROBE-READY "$place/output" || [ "$waited" -ge 300 ]; do
    sleep 0.1
    waited=$((waited + 1))
done
during=$(ls -A "$place/scratch")
kill -INT "$monitor"
(sleep 30 && kill -KILL "$monitor") 2> /dev/null &
limit=$!
wait "$monitor"
code=$?
kill "$limit" 2> /dev/null
after=$(ls -A "$place/scratch")
if [ "$code" -eq 130 ] && grep -q 'ended by Ctrl-C' "$place/output" &&
    [ -n "$during" ] && [ -z "$after" ]; then
    echo 'test ctrl_c_ends_a_vm_in_order_and_leaves_nothing ... ok'
    echo 'test result: ok. 1 passed; 0 failed'
    result=0
else
    cat "$place/output"
    echo "code $code; in scratch before: $during; after: $after"
    echo 'test ctrl_c_ends_a_vm_in_order_and_leaves_nothing ... FAILED'
    echo 'test result: FAILED. 0 passed; 1 failed'
    result=101
fi
rm -rf "$place"
exit "$result"
