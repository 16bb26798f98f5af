"""Words that say what a resource type is about, for whoever sorts types; nothing in here depends on them."""

from __future__ import annotations

# What it is.
NODE = "node"
APPLICATION = "application"
DATASET = "dataset"
TRAINING_PLAN = "training-plan"
JOB = "job"
MONITOR = "monitor"
COLLECTOR = "collector"

# Interfaces and what joins them.
INTERFACE = "interface"
ETHERNET = "ethernet"
WIFI = "wifi"
TAP = "tap"
TUN = "tun"
LOOPBACK = "loopback"
CHANNEL = "channel"
SWITCH = "switch"
ROUTER = "router"
TUNNEL = "tunnel"

# Addresses.
ADDRESS = "address"
IPV4 = "ipv4"
IPV6 = "ipv6"
MAC = "mac"
ROUTE = "route"

# Of which kind.
WIRELESS = "wireless"
WIRED = "wired"
VIRTUAL = "virtual"
PHYSICAL = "physical"
MOBILE = "mobile"
SIMULATED = "simulated"
EMULATED = "emulated"
LIVE = "live"
