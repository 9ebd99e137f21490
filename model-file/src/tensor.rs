//! Tensors as they lie in the file: integer codes stay integer codes.
//!
//! This module must not know where the bytes come from or what a model does with them.

/// Storage type of a tensor. Names and block formats are those of GGUF (ggml).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum TensorType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an [`F32`](Self::F32).
    BF16,
    /// 32 signed bytes and a scale.
    Q8_0,
    /// 32 codes of 4 bits around 8 and a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits around 16 and a scale.
    Q5_0,
    /// 32 codes of 5 bits, a scale and a minimum.
    Q5_1,
    /// 8 × 32 codes of 4 bits with 6-bit scales and minima.
    Q4_K,
    /// 8 × 32 codes of 5 bits with 6-bit scales and minima.
    Q5_K,
    /// 16 × 16 codes of 6 bits around 32 with 8-bit scales.
    Q6_K,
}

impl TensorType {
    /// Every type, in the order of declaration.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Values per block.
    pub const fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of a row of `columns` values; `None` if `columns` is no multiple of the block size.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        if columns.is_multiple_of(self.block_size()) {
            (columns / self.block_size()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }

    /// Number of the type in GGUF files (`enum ggml_type` of ggml.h).
    pub const fn gguf_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    /// The type with this number in GGUF files.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.gguf_id() == id)
    }
}

/// Name, type and shape of a tensor; its size has been checked against the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Canonical (Hugging Face) name.
    pub name: String,
    /// Storage type.
    pub kind: TensorType,
    /// Rows: output features (1 for vectors).
    pub rows: usize,
    /// Columns: input features, contiguous in memory; a multiple of the type's block size.
    pub columns: usize,
}

impl TensorInfo {
    /// Size of the data in bytes. Readers have checked that it does not overflow.
    pub fn bytes(&self) -> usize {
        self.rows * (self.columns / self.kind.block_size()) * self.kind.block_bytes()
    }
}

/// A tensor with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Canonical (Hugging Face) name.
    pub name: String,
    /// Storage type.
    pub kind: TensorType,
    /// Rows: output features (1 for vectors).
    pub rows: usize,
    /// Columns: input features, contiguous in memory.
    pub columns: usize,
    /// Exactly `rows * columns / block_size * block_bytes` bytes, little-endian, row after row.
    pub data: Vec<u8>,
}

impl Tensor {
    /// All values as `f32`, row after row.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        crate::dequantize(self.kind, &self.data, &mut values);
        values
    }
}
