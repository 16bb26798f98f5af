#!/bin/sh
# The command runs as it would without `fedmon job --`: same output, same exit code.
fedmon job --save_dir "$PWD" --prefix run-1 --interval 1 --gen_report --export csv -- ${WORK:-./work.sh}
