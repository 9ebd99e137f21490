//! The transfer of a hand-off's latest grant: none, streaming, or committing.
//!
//! It must not know which grants come, nor what becomes of a broken transfer.

use std::pin::Pin;

use baton_kv_transfer::{Outgoing, TransferError, TransferStats};
use baton_proto::domain::{CommitPayload, GeneratedToken};
use baton_proto::ids::{Attempt, SpanRef};
use baton_proto::v1;
use prost::Message as _;

type Committing = Pin<Box<dyn Future<Output = Result<TransferStats, TransferError>> + Send>>;

/// The transfer of the latest grant. Dropping one revokes it.
pub(crate) enum Transfer {
    /// No grant yet, or the last attempt broke.
    None,
    /// Pages leave as they become ready.
    Streaming(Attempt, Outgoing),
    /// All are ready; Commit is on its way.
    Committing(Attempt, Committing),
}

impl Transfer {
    /// Resolves when the attempt ends by itself; never without one.
    pub(crate) async fn ended(&mut self) -> (Attempt, Result<TransferStats, TransferError>) {
        match self {
            Self::None => std::future::pending().await,
            Self::Streaming(attempt, outgoing) => (*attempt, Err(outgoing.failed().await)),
            Self::Committing(attempt, commit) => (*attempt, commit.await),
        }
    }

    /// The prompt is computed: Commit follows the last page of a transfer that streams.
    pub(crate) fn commit(
        &mut self,
        first_tokens: &[GeneratedToken],
        running_choices: &[u32],
        span: Option<SpanRef>,
    ) {
        let Some((attempt, outgoing)) = self.take_streaming() else {
            return;
        };
        let mut first_tokens = first_tokens.to_vec();
        for token in &mut first_tokens {
            token.attempt = attempt;
        }
        let running_choices = running_choices.to_vec();
        let payload = CommitPayload {
            first_tokens,
            running_choices,
            span,
        };
        let payload = v1::CommitPayload::from(payload).encode_to_vec();
        *self = Self::Committing(attempt, Box::pin(outgoing.commit(payload)));
    }

    /// Takes out a transfer that streams; leaves any other as it is.
    pub(crate) fn take_streaming(&mut self) -> Option<(Attempt, Outgoing)> {
        match std::mem::replace(self, Self::None) {
            Self::Streaming(attempt, outgoing) => Some((attempt, outgoing)),
            other => {
                *self = other;
                None
            }
        }
    }
}
