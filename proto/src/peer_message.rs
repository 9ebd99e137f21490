//! Every message that another process sends, read as its receiver reads it: decoded, then checked. The one
//! list of them, for tests and for fuzzing. It must not know services.

use std::error::Error;

use prost::Message as _;

use crate::convert::{
    AdmissionDefaults, SequenceLimits, sampling_from_wire, stop_strings_from_wire,
};
use crate::domain::{CommitPayload, Grant, WorkerInfo, WorkerLoad};
use crate::legs::{DecodeCommand, DecodeEvent, PrefillCommand, PrefillEvent};
use crate::v1;

/// A message by its receiver and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMessage {
    /// Router to prefill worker.
    PrefillRequest,
    /// Prefill worker to router.
    PrefillResponse,
    /// Router to decode worker.
    DecodeRequest,
    /// Decode worker to router.
    DecodeResponse,
    /// Decode worker to prefill worker, over the router.
    Grant,
    /// Prefill worker to decode worker, over the data plane.
    CommitPayload,
    /// Worker to router, when it registers.
    WorkerInfo,
    /// Worker to router, again and again.
    WorkerLoad,
    /// Client to router.
    SamplingOptions,
}

impl PeerMessage {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::PrefillRequest,
        Self::PrefillResponse,
        Self::DecodeRequest,
        Self::DecodeResponse,
        Self::Grant,
        Self::CommitPayload,
        Self::WorkerInfo,
        Self::WorkerLoad,
        Self::SamplingOptions,
    ];

    /// Decodes and checks a message of this kind; whether it is accepted.
    pub fn accepts(self, bytes: &[u8], limits: SequenceLimits) -> bool {
        self.read(bytes, limits).is_ok()
    }

    fn read(self, bytes: &[u8], limits: SequenceLimits) -> Result<(), Box<dyn Error>> {
        match self {
            Self::PrefillRequest => {
                PrefillCommand::from_wire(v1::PrefillRequest::decode(bytes)?, &limits)?;
            }
            Self::PrefillResponse => {
                PrefillEvent::try_from(v1::PrefillResponse::decode(bytes)?)?;
            }
            Self::DecodeRequest => {
                DecodeCommand::from_wire(v1::DecodeRequest::decode(bytes)?, &limits)?;
            }
            Self::DecodeResponse => {
                DecodeEvent::try_from(v1::DecodeResponse::decode(bytes)?)?;
            }
            Self::Grant => {
                Grant::try_from(v1::Grant::decode(bytes)?)?;
            }
            Self::CommitPayload => {
                CommitPayload::try_from(v1::CommitPayload::decode(bytes)?)?;
            }
            Self::WorkerInfo => {
                WorkerInfo::try_from(v1::WorkerInfo::decode(bytes)?)?;
            }
            Self::WorkerLoad => {
                WorkerLoad::try_from(v1::WorkerLoad::decode(bytes)?)?;
            }
            Self::SamplingOptions => {
                let options = v1::SamplingOptions::decode(bytes)?;
                stop_strings_from_wire(&options)?;
                let defaults = AdmissionDefaults {
                    seed: 1,
                    max_tokens: limits.context_length,
                };
                sampling_from_wire(&options, defaults, limits.vocabulary)?;
            }
        }
        Ok(())
    }
}
