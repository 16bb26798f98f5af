#!/bin/bash
#OAR -n fit
#OAR -l /resource_id=1,walltime=1:00:00

fedmon job --save_dir "$PWD" --interval 1 --gen_report --export csv &
monitor=$!

# Your programs, as without a monitor.
${WORK:-./work.sh}
status=$?

# The programs are done: end the monitor, and wait until report and tables are written.
echo FINISHED > ".ipc-$OAR_JOB_ID"
wait "$monitor"
exit "$status"
