//! A model's weights, packed for the CPU. Steps and pages are not its business.

use baton_kv_cache::{KvDtype, KvLayout};
use baton_model_file::{ModelConfig, ModelFile, Tensor, TensorType};

use super::{
    lanes::LANES,
    matmul::{ActivationForm, PackError, PackedMatrix},
    memory::Arena,
    pages::LAYOUT_ID,
    rope::Rotations,
};
use crate::{
    CpuOptions, EngineError,
    model::{self, WeightSource, Weights},
};

/// The weights of a model, packed for the CPU; shared by any number of engines.
pub struct CpuModel {
    pub(super) config: ModelConfig,
    pub(super) weights: Weights<PackedMatrix, Vec<f32>>,
    pub(super) rotations: Rotations,
    /// Forms of activations that the matrices take, all together.
    pub(super) forms: ActivationForm,
    packed_bytes: usize,
}

impl CpuModel {
    /// Reads and packs all weights, one tensor at a time; `progress(done_bytes, total_bytes)`.
    ///
    /// # Errors
    /// Missing or malformed tensors, all named; I/O; options out of range.
    pub fn load(
        file: &ModelFile,
        options: &CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        options.validate()?;
        Self::load_as(file.config().clone(), file, progress)
    }

    /// Loads `file` as if its configuration were `config`.
    pub(super) fn load_as(
        config: ModelConfig,
        file: &ModelFile,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        check_supported(&config)?;
        let total = file.weight_bytes();
        // Tensors of one row are vectors, which are not packed.
        let matrices = file.tensors().filter(|tensor| tensor.rows > 1);
        let room = matrices.fold(0_usize, |sum, tensor| {
            let packed = PackedMatrix::packed_bytes(tensor.kind, tensor.rows, tensor.columns);
            sum.saturating_add(packed)
        });
        let mut packer = Packer {
            file,
            progress,
            done: 0,
            total,
            forms: ActivationForm::default(),
            packed: 0,
            arena: Arena::with_room(room),
        };
        (packer.progress)(0, total);
        let weights = model::load(
            config.architecture,
            config.layers,
            config.tied_embeddings,
            &mut packer,
        )?;
        (packer.progress)(total, total);
        let (forms, packed_bytes) = (packer.forms, packer.packed);
        Ok(Self {
            rotations: Rotations::new(&config.rope),
            weights,
            forms,
            packed_bytes,
            config,
        })
    }

    /// Shapes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of the packed matrices.
    pub fn packed_bytes(&self) -> usize {
        self.packed_bytes
    }

    /// Layout of a region of `pages` pages for this model.
    pub fn kv_layout(&self, page_size: u32, pages: u32, dtype: KvDtype) -> KvLayout {
        KvLayout {
            layers: self.config.layers,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
            page_size,
            dtype,
            pages,
        }
    }

    /// Name of the order of values inside a piece, for the fingerprint.
    pub fn layout_id(&self) -> &'static str {
        LAYOUT_ID
    }

    /// Name of the arithmetic, for the fingerprint: equal ids give equal bits.
    pub fn numerics_id(&self) -> &'static str {
        "cpu/4"
    }
}

impl std::fmt::Debug for CpuModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuModel")
            .field("config", &self.config)
            .field("packed_bytes", &self.packed_bytes)
            .finish_non_exhaustive()
    }
}

/// What the execution relies on beyond what the file reader has checked.
fn check_supported(config: &ModelConfig) -> Result<(), EngineError> {
    let refuse = |what: String| Err(EngineError::Unsupported(what));
    let rotated = config.rope.dimensions;
    if !config.head_dim.is_multiple_of(2) {
        return refuse(format!("heads of {} values, which is odd", config.head_dim));
    }
    if !rotated.is_multiple_of(2) || rotated > config.head_dim {
        return refuse(format!(
            "{rotated} rotated dimensions of {}",
            config.head_dim
        ));
    }
    if let baton_model_file::RopeScaling::Factors(factors) = &config.rope.scaling
        && factors.len() != rotated as usize / 2
    {
        return refuse(format!(
            "{} rotary factors for {rotated} dimensions",
            factors.len()
        ));
    }
    Ok(())
}

/// A way to pack tensors into one matrix.
type Pack = fn(&mut Arena, &[(TensorType, usize, &[u8])], usize) -> Result<PackedMatrix, PackError>;

/// Reads tensors and packs them.
struct Packer<'a> {
    file: &'a ModelFile,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    forms: ActivationForm,
    packed: usize,
    arena: Arena,
}

impl Packer<'_> {
    fn read(&mut self, name: &str) -> Result<Tensor, EngineError> {
        let tensor = self.file.read_tensor(name)?;
        self.done += tensor.data.len() as u64;
        (self.progress)(self.done.min(self.total), self.total);
        Ok(tensor)
    }

    fn pack(&mut self, names: &[String], pack: Pack) -> Result<PackedMatrix, EngineError> {
        let tensors = names
            .iter()
            .map(|name| self.read(name))
            .collect::<Result<Vec<_>, _>>()?;
        let columns = tensors.first().map_or(0, |tensor| tensor.columns);
        let parts: Vec<(TensorType, usize, &[u8])> = tensors
            .iter()
            .map(|tensor| (tensor.kind, tensor.rows, &*tensor.data))
            .collect();
        let packed = pack(&mut self.arena, &parts, columns).map_err(|error| {
            EngineError::Tensors(vec![format!("{}: {error}", names.join(", "))])
        })?;
        self.forms = self.forms.union(packed.form());
        self.packed += packed.bytes();
        Ok(packed)
    }
}

impl WeightSource for Packer<'_> {
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type Error = EngineError;

    fn matrix(&mut self, names: &[String]) -> Result<PackedMatrix, EngineError> {
        self.pack(names, PackedMatrix::pack_within)
    }

    fn pair(&mut self, names: &[String; 2]) -> Result<PackedMatrix, EngineError> {
        self.pack(names, PackedMatrix::pack_pair_within)
    }

    /// Padded with zeros to whole vectors.
    fn vector(&mut self, names: &[String]) -> Result<Vec<f32>, EngineError> {
        let mut values = Vec::new();
        for name in names {
            values.extend(self.read(name)?.to_f32());
        }
        values.resize(values.len().next_multiple_of(LANES), 0.0);
        Ok(values)
    }
}
