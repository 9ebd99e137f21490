//! Counters of a process's transfers, by reason. It must not know who reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Refusal, TransferError};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since start; all monotonic.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            /// Every counter by name, in a fixed order.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((concat!("kv_transfer_", stringify!($name)), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Grants made.
    opened,
    /// Attempts committed (receiver) or acknowledged (sender).
    committed,
    /// Attempts revoked.
    revoked,
    /// Attempts that failed, all reasons.
    failed,
    /// Failed by a lease that expired.
    failed_expired,
    /// Failed by a broken connection.
    failed_connection_lost,
    /// Failed as the worker dropped them.
    failed_dropped,
    /// Failed by missing pieces.
    failed_gap,
    /// Failed by a page or generation that was not granted.
    failed_stale_page,
    /// Failed by a bad manifest, a bad frame or one out of turn.
    failed_protocol,
    /// Failed for want of progress.
    failed_no_progress,
    /// Failed for other reasons.
    failed_other,
    /// Pieces or transfers whose bytes were not those sent.
    checksum_mismatch,
    /// Payload bytes that landed in pages.
    bytes_received,
    /// Payload bytes that were sent.
    bytes_sent,
    /// Of them, those sent before their prompt's last step had ended.
    bytes_sent_early,
    /// Frames of closed or other attempts, dropped.
    frames_late,
    /// Pieces that had landed before, dropped.
    pieces_duplicate,
    /// Frames that could not be decoded.
    frames_malformed,
    /// Connections closed before a handshake was complete.
    handshakes_abandoned,
    /// Handshakes refused: wrong incarnation.
    refused_incarnation,
    /// Handshakes refused: fingerprint.
    refused_fingerprint,
    /// Handshakes refused: unknown transfer.
    refused_unknown,
    /// Handshakes refused: closed transfer.
    refused_closed,
    /// Handshakes refused: another attempt.
    refused_attempt,
    /// Handshakes refused: wrong secret.
    refused_secret,
    /// Handshakes refused: other page slots than were granted.
    refused_slots,
    /// Handshakes refused: secret used before.
    refused_already_used,
    /// Handshakes refused: shm from another user.
    refused_other_user,
    /// Handshakes refused: shm from another host.
    refused_other_host,
    /// Handshakes refused: quarantine cap.
    refused_quarantine,
    /// Handshakes refused: malformed.
    refused_malformed,
    /// Attempts that used tcp though shm was offered.
    shm_fallbacks,
    /// Pages that went into quarantine.
    pages_quarantined,
    /// Pages that left quarantine.
    pages_fenced,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn count_refusal(&self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Incarnation { .. } => &self.refused_incarnation,
            Refusal::Fingerprint(_) => &self.refused_fingerprint,
            Refusal::Unknown => &self.refused_unknown,
            Refusal::Closed(_) => &self.refused_closed,
            Refusal::Attempt { .. } => &self.refused_attempt,
            Refusal::Secret => &self.refused_secret,
            Refusal::Slots => &self.refused_slots,
            Refusal::AlreadyUsed => &self.refused_already_used,
            Refusal::OtherUser => &self.refused_other_user,
            Refusal::OtherHost => &self.refused_other_host,
            Refusal::Quarantine { .. } => &self.refused_quarantine,
            Refusal::Malformed => &self.refused_malformed,
        };
        add(counter, 1);
    }

    pub(crate) fn count_failure(&self, error: &TransferError) {
        add(&self.failed, 1);
        let counter = match error {
            TransferError::Expired { .. } => &self.failed_expired,
            TransferError::ConnectionLost { .. } => &self.failed_connection_lost,
            TransferError::Revoked => &self.failed_dropped,
            TransferError::Gap { .. } => &self.failed_gap,
            TransferError::StalePage { .. } => &self.failed_stale_page,
            TransferError::NoProgress { .. } => &self.failed_no_progress,
            TransferError::Manifest { .. }
            | TransferError::OutOfTurn(_)
            | TransferError::Frame(_) => &self.failed_protocol,
            TransferError::Checksum { .. } | TransferError::Digest => &self.checksum_mismatch,
            _ => &self.failed_other,
        };
        add(counter, 1);
    }
}
