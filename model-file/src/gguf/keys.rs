//! Metadata keys of one architecture: typed and ranged access, and refusal of what would be ignored.
//!
//! It must not know what a configuration consists of.

use std::ops::RangeInclusive;

use super::value::Metadata;
use crate::{Architecture, FileError, limits};

/// Keys (after the architecture) that change the result and are not applied, with the numbers
/// that leave it as it is.
const NOT_APPLIED: [(&str, &[f32]); 9] = [
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

/// Metadata of one architecture, whose keys begin with its name.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    prefix: &'a str,
    pub(super) architecture: Architecture,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata) -> Result<Self, FileError> {
        const KEY: &str = "general.architecture";
        let prefix = metadata
            .string(KEY)?
            .ok_or_else(|| FileError::missing(KEY))?;
        let architecture = match prefix {
            "llama" => Architecture::Llama,
            "qwen2" => Architecture::Qwen2,
            "qwen3" => Architecture::Qwen3,
            other => return Err(FileError::unsupported(KEY, other)),
        };
        Ok(Self {
            metadata,
            prefix,
            architecture,
        })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(super) fn optional_size(
        &self,
        name: &str,
        range: &RangeInclusive<u64>,
    ) -> Result<Option<u32>, FileError> {
        let key = self.key(name);
        self.metadata
            .count(&key)?
            .map(|value| limits::within(&key, value, range))
            .transpose()
    }

    pub(super) fn size(&self, name: &str, range: &RangeInclusive<u64>) -> Result<u32, FileError> {
        self.optional_size(name, range)?
            .ok_or_else(|| FileError::missing(self.key(name)))
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f32>, FileError> {
        self.metadata.float(&self.key(name))
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, FileError> {
        self.float(name)?
            .map(|value| limits::positive(&self.key(name), value))
            .transpose()
    }

    pub(super) fn require_equal(&self, name: &str, wanted: u32) -> Result<(), FileError> {
        let key = self.key(name);
        match self.metadata.count(&key)? {
            Some(value) if value != u64::from(wanted) => Err(FileError::Unsupported {
                value: format!("{value} (the head dimension is {wanted})"),
                key,
            }),
            _ => Ok(()),
        }
    }

    /// Whether attention is limited to a window that a sequence can outgrow.
    pub(super) fn window(&self, context: u32) -> Result<bool, FileError> {
        let window = self
            .metadata
            .count(&self.key("attention.sliding_window"))?
            .unwrap_or(0);
        Ok(window != 0 && window < u64::from(context))
    }

    pub(super) fn refuse_unsupported(&self) -> Result<(), FileError> {
        if let Some(kind) = self.metadata.string("general.type")?
            && kind != "model"
        {
            return Err(FileError::unsupported("general.type", kind));
        }
        for key in ["split.count".to_owned(), self.key("expert_count")] {
            let most = u64::from(key == "split.count");
            if let Some(value) = self.metadata.count(&key)?.filter(|&value| value > most) {
                return Err(FileError::unsupported(key, value));
            }
        }
        for (name, neutral) in NOT_APPLIED {
            if let Some(value) = self.float(name)?.filter(|value| !neutral.contains(value)) {
                return Err(FileError::unsupported(self.key(name), value));
            }
        }
        let causal = self.key("attention.causal");
        if self.metadata.bool(&causal)? == Some(false) {
            return Err(FileError::unsupported(causal, false));
        }
        Ok(())
    }
}
