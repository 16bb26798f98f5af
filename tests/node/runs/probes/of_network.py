"""Probes that try to reach somebody."""

from __future__ import annotations

import socket

Facts = dict[str, object]


def tcp_to_the_machine(facts: Facts) -> object:
    socket.create_connection(("127.0.0.1", int(str(facts["tcp_port"]))), timeout=2).close()
    return "connected"


def tcp_over_ipv6(facts: Facts) -> object:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as out:
        out.bind(("::", 0))
        out.listen()
        return "listens"


def udp_to_the_machine(facts: Facts) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(("127.0.0.1", int(str(facts["udp_port"]))))
        return out.send(b"leak")


def listening(facts: Facts) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


def name_resolution(facts: Facts) -> object:
    return socket.getaddrinfo("localhost", 80)


def raw_packets(facts: Facts) -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


def raw_ip(facts: Facts) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def netlink(facts: Facts) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


def virtual_machine_sockets(facts: Facts) -> object:
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def crypto_sockets(facts: Facts) -> object:
    return socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)


def unix_socket_by_path(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(str(facts["unix_path"]))
        return "connected"


def unix_socket_by_abstract_name(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect("\0" + str(facts["unix_name"]))
        return "connected"


def datagram_to_an_abstract_name(facts: Facts) -> object:
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return ours.sendto(b"leak", "\0" + str(facts["datagram_name"]))


def interfaces(facts: Facts) -> object:
    return [name for _, name in socket.if_nameindex() if name != "lo"]
