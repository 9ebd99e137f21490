//! Who is asking: calls in progress by client address, so that no one client takes every place.
//!
//! It must not know what a call is about.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::RequestError;
use crate::keys::{Key, KeyPlace};

/// Hint to those who are refused.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Bits of an IPv6 address that name a network: whoever has one has all of its addresses.
const NETWORK: u128 = !0 << 64;

/// Counts calls by client. An entry lives as long as its calls, so there are never more than those.
#[derive(Debug)]
pub(crate) struct Clients {
    limit: usize,
    calls: Mutex<HashMap<IpAddr, usize>>,
}

/// One call of a client; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct ClientPlace {
    clients: Arc<Clients>,
    client: IpAddr,
    key: Option<KeyPlace>,
}

impl Clients {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let calls = Mutex::default();
        Arc::new(Self { limit, calls })
    }

    /// Counts a call from this address; refused, with a hint, if the client has too many.
    pub(crate) fn enter(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
    ) -> Result<ClientPlace, RequestError> {
        let client = client(address);
        let mut calls = self.lock();
        let count = calls.entry(client).or_insert(0);
        if *count >= self.limit {
            let what = format!(
                "{count} requests of {client} run or wait already, the limit for one client is {}",
                self.limit
            );
            return Err(RequestError::Overloaded {
                what,
                retry_after: RETRY_AFTER,
            });
        }
        *count += 1;
        drop(calls);
        Ok(ClientPlace {
            clients: Arc::clone(self),
            client,
            key: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientPlace {
    /// Counts the call against its key too, if there is one.
    pub(crate) fn of_key(mut self, key: Option<&Arc<Key>>) -> Result<Self, RequestError> {
        self.key = key.map(Key::enter).transpose()?;
        Ok(self)
    }

    /// The cache salt of this call: what the client gave, its key's own if it has one.
    pub(crate) fn salt(&self, given: Vec<u8>) -> Vec<u8> {
        match &self.key {
            Some(place) => place.key().salt(&given),
            None => given,
        }
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut calls = self.clients.lock();
        if let Some(count) = calls.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.client);
            }
        }
    }
}

/// The address that stands for a client: its IPv4 address or its IPv6 network.
fn client(address: Option<SocketAddr>) -> IpAddr {
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
        Some(ip) => ip,
        None => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(clients: &Arc<Clients>, from: &str) -> Result<ClientPlace, RequestError> {
        clients.enter(Some(from.parse().unwrap()))
    }

    #[test]
    fn sec_05_each_client_is_counted_alone_and_forgotten() {
        let clients = Clients::new(2);
        let first = enter(&clients, "10.0.0.1:1").unwrap();
        // Another port, and the same address written in another way: the same client.
        let _second = enter(&clients, "[::ffff:10.0.0.1]:2").unwrap();
        let refused = enter(&clients, "10.0.0.1:3").unwrap_err();
        assert!(
            refused.to_string().contains("10.0.0.1") && refused.to_string().contains("is 2"),
            "{refused}"
        );
        let other = enter(&clients, "10.0.0.2:1").unwrap();
        drop(first);
        let _third = enter(&clients, "10.0.0.1:4").unwrap();
        drop(other);
        assert_eq!(clients.lock().len(), 1);
    }

    #[test]
    fn sec_05_an_ipv6_network_is_one_client() {
        let clients = Clients::new(1);
        let _first = enter(&clients, "[2001:db8::1]:1").unwrap();
        assert!(enter(&clients, "[2001:db8::2:0:0:1]:1").is_err());
        assert!(enter(&clients, "[2001:db8:0:1::1]:1").is_ok());
    }
}
