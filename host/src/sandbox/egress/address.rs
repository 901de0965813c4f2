//! Which addresses belong to the public internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Blocks that no public host has: the entries of IANA's IPv4 special-purpose registry that are not globally
/// reachable, multicast, the deprecated 6to4 relay, and one cloud's metadata address that lies in public space.
const NOT_GLOBAL_V4: [(Ipv4Addr, u32); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),          // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),         // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),      // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),        // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32),   // Azure's host agent
    (Ipv4Addr::new(169, 254, 0, 0), 16),     // link-local, metadata services
    (Ipv4Addr::new(172, 16, 0, 0), 12),      // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),       // IETF protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),       // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),     // 6to4 relay
    (Ipv4Addr::new(192, 168, 0, 0), 16),     // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),      // benchmarking
    (Ipv4Addr::new(198, 51, 100, 0), 24),    // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),     // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),        // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),        // reserved
    (Ipv4Addr::new(255, 255, 255, 255), 32), // broadcast
];

/// The only block out of which IANA assigns public IPv6 addresses. All else is refused as a whole: loopback,
/// unique local, link-local, multicast, and every form that carries an IPv4 address (mapped, compatible,
/// NAT64).
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Exceptions inside [`GLOBAL_V6`].
const NOT_GLOBAL_V6: [(Ipv6Addr, u32); 4] = [
    // IETF protocol assignments: Teredo, benchmarking, ORCHID
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    // documentation
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    // 6to4
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Whether a tool may connect to the address without a grant that names it. `IpAddr::is_global` of the standard
/// library is not stable, and is wider: it lets IPv4 inside of IPv6 pass.
pub(super) fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_GLOBAL_V4
            .iter()
            .any(|(block, length)| in_v4(address, *block, *length)),
        IpAddr::V6(address) => {
            in_v6(address, GLOBAL_V6.0, GLOBAL_V6.1)
                && !NOT_GLOBAL_V6
                    .iter()
                    .any(|(block, length)| in_v6(address, *block, *length))
        }
    }
}

/// `length` is 1 to 32.
fn in_v4(address: Ipv4Addr, block: Ipv4Addr, length: u32) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (32 - length) == 0
}

/// `length` is 1 to 128.
fn in_v6(address: Ipv6Addr, block: Ipv6Addr, length: u32) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (128 - length) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each block's first and last address and its neighbours, so that a wrong length shows.
    const TABLE: [(&str, bool); 86] = [
        ("0.0.0.0", false),
        ("0.255.255.255", false),
        ("1.0.0.0", true),
        ("1.1.1.1", true),
        ("8.8.8.8", true),
        ("9.255.255.255", true),
        ("10.0.0.0", false),
        ("10.255.255.255", false),
        ("11.0.0.0", true),
        ("93.184.216.34", true),
        ("100.63.255.255", true),
        ("100.64.0.0", false),
        ("100.100.100.200", false), // Alibaba's metadata
        ("100.127.255.255", false),
        ("100.128.0.0", true),
        ("126.255.255.255", true),
        ("127.0.0.1", false),
        ("127.255.255.255", false),
        ("128.0.0.0", true),
        ("168.63.129.15", true),
        ("168.63.129.16", false),
        ("168.63.129.17", true),
        ("169.253.255.255", true),
        ("169.254.0.0", false),
        ("169.254.169.254", false),
        ("169.254.170.2", false), // ECS task metadata
        ("169.255.0.0", true),
        ("172.15.255.255", true),
        ("172.16.0.0", false),
        ("172.31.255.255", false),
        ("172.32.0.0", true),
        ("192.0.0.0", false),
        ("192.0.0.192", false), // Oracle's metadata
        ("192.0.1.0", true),
        ("192.0.2.1", false),
        ("192.0.3.0", true),
        ("192.88.98.255", true),
        ("192.88.99.1", false),
        ("192.167.255.255", true),
        ("192.168.0.0", false),
        ("192.168.255.255", false),
        ("192.169.0.0", true),
        ("198.17.255.255", true),
        ("198.18.0.0", false),
        ("198.19.255.255", false),
        ("198.20.0.0", true),
        ("198.51.99.255", true),
        ("198.51.100.7", false),
        ("198.51.101.0", true),
        ("203.0.112.255", true),
        ("203.0.113.7", false),
        ("203.0.114.0", true),
        ("223.255.255.255", true),
        ("224.0.0.1", false),
        ("239.255.255.255", false),
        ("240.0.0.0", false),
        ("255.255.255.254", false),
        ("255.255.255.255", false),
        ("::", false),
        ("::1", false),
        ("::7f00:1", false),         // compatible, 127.0.0.1
        ("::808:808", false),        // compatible, 8.8.8.8
        ("::ffff:127.0.0.1", false), // mapped
        ("::ffff:8.8.8.8", false),
        ("::ffff:0:127.0.0.1", false), // translated
        ("64:ff9b::7f00:1", false),    // NAT64
        ("64:ff9b::808:808", false),
        ("64:ff9b:1::1", false), // NAT64, local use
        ("100::1", false),       // discard
        ("1fff:ffff::", false),
        ("2001::1", false), // Teredo
        ("2001:2::1", false),
        ("2001:1ff:ffff::", false),
        ("2001:200::1", true),
        ("2001:db7:ffff::", true),
        ("2001:db8::1", false),
        ("2001:db9::", true),
        ("2001:4860:4860::8888", true),
        ("2002:7f00:1::", false), // 6to4
        ("2003::1", true),
        ("2606:4700:4700::1111", true),
        ("3fff::1", false),
        ("3fff:1000::", true),
        ("fd00:ec2::254", false), // EC2's metadata
        ("fe80::1", false),
        ("ff02::1", false),
    ];

    #[test]
    fn only_public_addresses_are_global() {
        for (text, global) in TABLE {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(is_global(address), global, "{text}");
        }
    }
}
