#!/bin/bash
#PBS -N fit
#PBS -l walltime=01:00:00
#PBS -l nodes=1:ppn=1
cd "$PBS_O_WORKDIR"

# The list of hosts lies on the first of them only; a copy in the shared folder is for all.
if [ -f "$PBS_NODEFILE" ]; then
  export PBS_NODEFILE_LOCAL="$PWD/.nodes-$PBS_JOBID"
  cp "$PBS_NODEFILE" "$PBS_NODEFILE_LOCAL"
fi

fedmon job --save_dir "$PWD" --interval 1 --gen_report --export csv &
monitor=$!

# Your programs, as without a monitor.
${WORK:-./work.sh}
status=$?

# The programs are done: end the monitor, and wait until report and tables are written.
echo FINISHED > ".ipc-$PBS_JOBID"
wait "$monitor"
rm -f "$PWD/.nodes-$PBS_JOBID"
exit "$status"
