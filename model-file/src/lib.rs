//! GGUF and safetensors readers and the model configuration they yield.
//!
//! Nothing here executes a model; the router uses it for tokenizer and metadata alone. The way of
//! a file: [`ModelFile::open`] → header parsed and bounded (`gguf`, `hugging_face`) → configuration
//! (`config`) and text metadata (`text`) → completeness (`layout`) → tensors on demand (`stored`).

#![forbid(unsafe_code)]

mod config;
mod dequantize;
mod error;
#[cfg(feature = "fixtures")]
pub mod fixtures;
mod gguf;
mod hugging_face;
mod layout;
mod limits;
mod model_file;
mod stored;
mod tensor;
mod text;

pub use config::{Architecture, ModelConfig, Rope, RopePairing, RopeScaling};
pub use dequantize::{dequantize, scale_and_minimum};
pub use error::{FileError, Misshapen};
pub use gguf::{GgufHeader, parse_gguf_header};
pub use hugging_face::MAX_TOKENIZER_JSON_BYTES;
pub use model_file::ModelFile;
pub use tensor::{Tensor, TensorInfo, TensorType};
pub use text::{GgufTokenizer, TextMetadata, TokenizerSource};
