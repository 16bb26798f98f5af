"""NEPI's tags: words for sorting resource types; fedmon itself uses none of them."""

from __future__ import annotations

# Kinds of resources.
NODE = "node"
APPLICATION = "application"
DATASET = "dataset"
TRAINING_PLAN = "training-plan"
JOB = "job"
MONITOR = "monitor"
COLLECTOR = "collector"

# Networks.
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

# Properties.
WIRELESS = "wireless"
WIRED = "wired"
VIRTUAL = "virtual"
PHYSICAL = "physical"
MOBILE = "mobile"
SIMULATED = "simulated"
EMULATED = "emulated"
LIVE = "live"
