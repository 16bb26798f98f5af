"""The guided first run: three hospitals with real data, one broker, one researcher, on this machine."""
