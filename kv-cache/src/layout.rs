//! Where the bytes of a page are. It must not know who computes or moves them.

/// Element type of K and V in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single; for checks against references.
    F32,
    /// Symmetric 8-bit codes, with one f32 scale for K and one for V of each token and head.
    Int8,
}

impl KvDtype {
    /// Bytes per value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::Int8 => 1,
        }
    }
    /// Bytes of the scale that the values of one token and head share, in K and in V each.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 | Self::F32 => 0,
            Self::Int8 => size_of::<f32>(),
        }
    }
    /// Name as the fingerprint and the command line write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }
}

/// Shape of the KV region: `layers` planes of `pages` pieces, layer-major.
///
/// A piece is one (layer, page): K of each of `kv_heads` heads, then V likewise. A head's K or V is
/// `page_size × head_dim` values, then one scale per token if the element type has scales. The order
/// inside a piece is the engine's and is named in the fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers.
    pub layers: u32,
    /// Key/value heads on this worker.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Element type.
    pub dtype: KvDtype,
    /// Pages in the pool.
    pub pages: u32,
}

impl KvLayout {
    /// Bytes of K or V of one head in a piece: values, then scales.
    pub const fn head_bytes(&self) -> usize {
        self.page_size as usize
            * (self.head_dim as usize * self.dtype.bytes() + self.dtype.scale_bytes())
    }
    /// Bytes of one (layer, page) piece.
    pub const fn piece_bytes(&self) -> usize {
        2 * self.kv_heads as usize * self.head_bytes()
    }
    /// Bytes of one page over all layers.
    pub const fn page_bytes(&self) -> usize {
        self.piece_bytes() * self.layers as usize
    }
    /// Bytes of the whole region.
    pub const fn region_bytes(&self) -> usize {
        self.page_bytes() * self.pages as usize
    }
    /// Byte offset of a piece. Adjacent pages of one layer are adjacent in memory.
    pub const fn piece_offset(&self, layer: u32, page: u32) -> usize {
        (layer as usize * self.pages as usize + page as usize) * self.piece_bytes()
    }
    /// Pages that `tokens` tokens need.
    pub const fn pages_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_size)
    }
}
