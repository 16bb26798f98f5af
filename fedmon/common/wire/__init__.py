"""The wire: topics, messages, their strict codec and the MQTT transport."""
