"""What recordings say: tables, exports, plots and reports; needs the extra `fedmon[report]`."""
