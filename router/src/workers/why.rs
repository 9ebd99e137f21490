//! Why a request goes where it goes: a class that is counted, and words for the receipt. It must not know
//! how that is decided.

/// Reasons of placements; each belongs to one way of being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Split: the least loaded prefill worker.
    LeastLoaded,
    /// Local: a hand-off would cost more.
    ShortPrompt,
    /// Local: the decode worker holds nearly all of the prompt.
    HoldsPrefix,
    /// Local: hand-offs of this request failed.
    HandOffsFailed,
    /// Local: no prefill worker is usable.
    NoPrefillWorker,
    /// Local: no usable prefill worker fits the decode workers.
    NoMatchingPrefillWorker,
    /// Prefill only: nothing comes after the first token.
    OneToken,
}

/// A placement's reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) why: Why,
    /// For the receipt.
    pub(crate) words: String,
}

impl Why {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::LeastLoaded,
        Self::ShortPrompt,
        Self::HoldsPrefix,
        Self::HandOffsFailed,
        Self::NoPrefillWorker,
        Self::NoMatchingPrefillWorker,
        Self::OneToken,
    ];

    /// The way of being served.
    pub(crate) const fn placement(self) -> &'static str {
        match self {
            Self::LeastLoaded => "split",
            Self::OneToken => "prefill_only",
            _ => "local",
        }
    }

    /// A short name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LeastLoaded => "least_loaded",
            Self::ShortPrompt => "short_prompt",
            Self::HoldsPrefix => "holds_prefix",
            Self::HandOffsFailed => "hand_offs_failed",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::NoMatchingPrefillWorker => "no_matching_prefill_worker",
            Self::OneToken => "one_token",
        }
    }

    /// With the words for the receipt.
    pub(super) fn because(self, words: impl Into<String>) -> Reason {
        let words = words.into();
        Reason { why: self, words }
    }
}
