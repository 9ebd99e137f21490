//! Which addresses a grant may send us to. It must not know what is said there.
//!
//! A grant comes from whoever reaches this worker's gRPC port. It must not turn the worker into a tool for
//! calling services that were never meant to be called, above all a cloud's metadata address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Why no receiver can be at `address`; `None` when one may be.
pub(super) fn objection(address: SocketAddr) -> Option<&'static str> {
    if address.port() == 0 {
        return Some("port 0");
    }
    let ip = match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    };
    match ip {
        _ if ip.is_unspecified() => Some("an unspecified address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("a broadcast address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("a link-local address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6 == METADATA_V6 => {
            Some("a link-local address")
        }
        _ => None,
    }
}

/// The one metadata address of IPv6 that is not link-local.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

#[cfg(test)]
mod tests {
    use super::objection;

    #[test]
    fn sec_02_no_grant_leads_to_a_metadata_service() {
        for refused in [
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[fe80::1]:80",
            "[fd00:ec2::254]:80",
            "0.0.0.0:80",
            "[::]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "127.0.0.1:0",
        ] {
            let address = refused.parse().expect("an address");
            assert!(objection(address).is_some(), "{refused} must be refused");
        }
        for accepted in [
            "127.0.0.1:80",
            "10.1.2.3:7000",
            "[::1]:80",
            "[2001:db8::1]:7000",
        ] {
            let address = accepted.parse().expect("an address");
            assert_eq!(objection(address), None, "{accepted}");
        }
    }
}
