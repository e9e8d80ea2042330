# shellcheck shell=bash
# Steps with limits, whose results come back whatever happens. Sourced by tests/gpu/run.sh and bench/gpu.sh, after
# environment.sh and the functions that steps call.
#   RESULTS=build/gpu_results    the folder in which they come back: NAME.jsonl, a line per step, and NAME.tar.gz, their logs
#   DEADLINE=470                 seconds after which nothing runs: with what it takes to end the last step, eight minutes
#   STEP_LIMIT=...               seconds that a step may take at most, besides its own limit
# The line is written and the logs are packed as each step ends. Without a last line named "all" the script was killed.

deadline=${DEADLINE:-470}
declare -A steps_with=([ok]=0 [failed]=0 [skipped]=0 ["not run"]=0)
step_pid='' step_name='' step_begin=0

open_results() {  # name
  mkdir -p "${RESULTS:-build/gpu_results}" || exit 73
  results=$(cd "${RESULTS:-build/gpu_results}" && pwd)
  results_name=$1
  rm -f "$results/$1".*
  work=$(mktemp -d)
  log=$work/$1
  mkdir "$log"
  export results work log
  gpu_report | tee "$log/report"
  python3 -c 'import json, sys; print(json.dumps({"name": "report", "data": sys.stdin.read().splitlines()}))' \
    <"$log/report" >"$results/$1.jsonl"
  trap close_results EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  # shellcheck disable=SC2046 # each is a word of its own, for the shells of the steps
  export -f $(compgen -A function)
}

# Runs a command, which may be a function. It has $step, its name; $step_log, what it has printed so far; $step_data, a file
# for lines of JSON. With the exit code 77 it was skipped, for the reason that it printed last.
step() {  # name limit_s command...
  local limit=$2 left=$((deadline - SECONDS)) cut='' rc=0
  step_name=$1 step_begin=$SECONDS
  shift 2
  : >"$work/data"
  [ "${STEP_LIMIT:-$limit}" -ge "$limit" ] || limit=$STEP_LIMIT
  if [ "$left" -lt 1 ]; then
    end_step "not run" 0 "the $deadline s of all steps are over"
    return
  fi
  if [ "$left" -lt "$limit" ]; then
    limit=$left cut=", the rest of the $deadline s of all steps"
  fi
  # In the background: a signal interrupts nothing but `wait`.
  step=$step_name step_log=$log/$step_name step_data=$work/data \
    timeout -k 5 "$limit" bash -uo pipefail -c '"$@"' _ "$@" >"$log/$step_name" 2>&1 &
  step_pid=$!
  wait "$step_pid" || rc=$?
  step_pid=
  [ $rc -ne 137 ] || [ $((SECONDS - step_begin)) -lt "$limit" ] || rc=124  # it did not end when it was asked to
  case $rc in
    0) end_step ok 0 "" ;;
    77) end_step skipped $rc "$(tail -1 "$log/$step_name")" ;;
    124) end_step failed $rc "timed out after $limit s$cut" ;;
    129 | 1[3-5]?) end_step failed $rc "crashed or killed: SIG$(kill -l $rc)" ;;
    *) end_step failed $rc "$(grep -m1 -aE 'FAILED|Failure|Error|ERROR|engine:' "$log/$step_name" ||
      tail -1 "$log/$step_name")" ;;
  esac
}

end_step() {  # result rc reason
  local seconds=$((SECONDS - step_begin))
  steps_with[$1]=$((steps_with[$1] + 1))
  python3 - "$step_name" "$1" $seconds "$2" "$3" "$work/data" >>"$results/$results_name.jsonl" <<'PYTHON'
import json, sys

name, result, seconds, code, reason, data = sys.argv[1:]
line = {"name": name, "result": result, "seconds": int(seconds), "rc": int(code), "reason": reason}
whole = [text for text in open(data) if text.startswith("{") and text.endswith("}\n")]  # the last may be cut
print(json.dumps(line | {"data": [json.loads(text) for text in whole]}))
PYTHON
  printf '%-8s %s (%d s)%s\n' "$1" "$step_name" $seconds "${3:+: $3}"
  tar -C "$work" -czf "$results/$results_name.part" "$results_name" &&
    mv "$results/$results_name.part" "$results/$results_name.tar.gz"
}

# Ends the script: with 0 if it came to its end and `summarize`, which the caller defines, says that all is well.
close_results() {
  local rc=$?
  trap - EXIT HUP INT TERM
  if [ -n "$step_pid" ]; then
    kill "$step_pid"
    wait "$step_pid"
    end_step failed $rc "stopped by SIG$(kill -l $rc)"
  fi
  printf '{"name": "all", "ok": %d, "failed": %d, "skipped": %d, "not_run": %d}\n' "${steps_with[ok]}" "${steps_with[failed]}" \
    "${steps_with[skipped]}" "${steps_with["not run"]}" >>"$results/$results_name.jsonl"
  summarize || [ $rc -ne 0 ] || rc=1
  rm -rf "$work"
  exit $rc
}
