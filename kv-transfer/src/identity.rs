//! Who a process is in handshakes. It must not know how it is reached.

use baton_proto::domain::Fingerprint;
use baton_proto::ids::Incarnation;

/// Who this process is, as told in every handshake.
#[derive(Debug, Clone)]
pub struct Identity {
    /// This process start.
    pub incarnation: Incarnation,
    /// Compatibility identity.
    pub fingerprint: Fingerprint,
    /// Boot id of the host; see [`host_id`].
    pub host_id: String,
}

/// Which transports a side offers or may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportChoice {
    /// shm where host and user are the same, else tcp.
    Auto,
    /// Only shm.
    Shm,
    /// Only tcp.
    Tcp,
}

impl TransportChoice {
    pub(crate) const fn allows_shm(self) -> bool {
        matches!(self, Self::Auto | Self::Shm)
    }
    pub(crate) const fn allows_tcp(self) -> bool {
        matches!(self, Self::Auto | Self::Tcp)
    }
}

/// Identity of this host: the kernel's boot id. Empty where the system has none; an empty id never
/// equals another, so that shm is then not used.
pub fn host_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
