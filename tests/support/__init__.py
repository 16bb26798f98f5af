"""What tests of several folders share: brokers, ports, waiting, node processes."""
