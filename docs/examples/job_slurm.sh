#!/bin/bash
#SBATCH --job-name=fit
#SBATCH --nodes=1
#SBATCH --time=01:00:00

# One monitor on each node of the job, in a separate step beside yours.
nodes=$SLURM_JOB_NUM_NODES
srun --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \
  fedmon job --save_dir "$PWD" --interval 1 --gen_report --export csv &
monitor=$!

# Your programs, as without a monitor.
srun --overlap ${WORK:-./work.sh}
status=$?

# The programs are done: end the monitors, and wait until report and tables are written.
echo FINISHED > ".ipc-$SLURM_JOB_ID"
wait "$monitor"
exit "$status"
