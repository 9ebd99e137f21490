//! The kinds of work that are measured. Who does them is not known here.

/// Lengths of measured prompts.
const PREFILL_TOKENS: [u32; 3] = [128, 512, 2048];
/// Numbers of measured streams.
const STREAMS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Tokens that each stream holds before the measured steps.
const CONTEXTS: [u32; 2] = [256, 2048];
/// Decode steps of one measurement; the streams grow by as many tokens.
pub(super) const STEPS: u32 = 16;

/// One kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A whole prompt; logits of its last token.
    Prefill { tokens: u32 },
    /// Steps of one token for each stream, logits of all.
    Decode { streams: u32, context: u32 },
}

impl Work {
    /// Everything that is measured, in order.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let prefill = PREFILL_TOKENS.map(|tokens| Self::Prefill { tokens });
        let decode = CONTEXTS
            .into_iter()
            .flat_map(|context| STREAMS.map(|streams| Self::Decode { streams, context }));
        prefill.into_iter().chain(decode)
    }

    /// Tokens that its longest sequence comes to hold.
    pub(super) fn longest(self) -> u32 {
        match self {
            Self::Prefill { tokens } => tokens,
            Self::Decode { context, .. } => context + STEPS,
        }
    }

    /// Tokens that all its sequences come to hold.
    pub(super) fn held(self) -> u64 {
        match self {
            Self::Prefill { tokens } => tokens.into(),
            Self::Decode { streams, .. } => u64::from(streams) * u64::from(self.longest()),
        }
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Prefill { tokens } => write!(f, "prefill of {tokens} tokens"),
            Self::Decode { streams, context } => {
                write!(f, "decode of {streams} streams at {context} tokens")
            }
        }
    }
}
