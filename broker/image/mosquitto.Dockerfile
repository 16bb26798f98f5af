# The broker: mosquitto 2.0 of Debian, with the security updates of the day on which the image is built.
FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends mosquitto mosquitto-clients \
    && rm -rf /var/lib/apt/lists/*
