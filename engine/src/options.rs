//! Settings of the CPU engine and the instruction sets that it can use.

use std::sync::LazyLock;

use crate::EngineError;

/// Settings of the CPU engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuOptions {
    /// Compute threads, the stepping thread included; at least 1.
    pub threads: usize,
    /// CPUs to pin threads to, thread `i` to `cpus[i % cpus.len()]` (empty: no pinning).
    pub cpus: Vec<usize>,
    /// Most tokens in a step.
    pub max_step_tokens: usize,
    /// Most logits rows in a step, of all slices together: each is a vocabulary of f32 in memory.
    pub max_step_rows: usize,
    /// Force an instruction set (`None`: the best that the machine has).
    pub isa: Option<Isa>,
}

/// Instruction sets with their own kernels. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2 + FMA.
    Avx2,
    /// AVX2 + FMA with AVX-VNNI.
    Avx2Vnni,
    /// AVX-512 with VNNI.
    Avx512,
    /// The same, with a bf16 unit that rounds as two fused multiply-adds do.
    Avx512Bf16,
}

impl Isa {
    /// All, slowest first.
    pub const ALL: [Self; 5] = [
        Self::Portable,
        Self::Avx2,
        Self::Avx2Vnni,
        Self::Avx512,
        Self::Avx512Bf16,
    ];

    /// The instruction sets that this machine can run, slowest first; never empty.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: LazyLock<Vec<Isa>> =
            LazyLock::new(|| Isa::ALL.into_iter().filter(|isa| isa.runs_here()).collect());
        &AVAILABLE
    }

    /// The best instruction set that this machine can run.
    pub fn detect() -> Self {
        *Self::available()
            .last()
            .expect("the portable one is always there")
    }

    /// Name as the command line writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx2Vnni => "avx2-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn runs_here(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::Avx2Vnni => Self::Avx2.runs_here() && is_x86_feature_detected!("avxvnni"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx512Bf16 => crate::cpu::bf16_unit_is_exact(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn runs_here(self) -> bool {
        self == Self::Portable
    }
}

/// Most compute threads of one engine.
const MAX_THREADS: usize = 256;
/// Most tokens of one step: what the buffers are allocated for.
const MAX_STEP_TOKENS: usize = 65_536;

impl CpuOptions {
    /// The instruction set to use.
    ///
    /// # Errors
    /// A forced one that this machine lacks.
    pub(crate) fn resolve_isa(&self) -> Result<Isa, EngineError> {
        match self.isa {
            None => Ok(Isa::detect()),
            Some(isa) if Isa::available().contains(&isa) => Ok(isa),
            Some(isa) => Err(EngineError::Option {
                option: "isa",
                reason: format!("this machine does not have {}", isa.name()),
            }),
        }
    }

    /// Checks every number against its limits.
    ///
    /// # Errors
    /// The first field out of range.
    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        check("threads", self.threads, MAX_THREADS)?;
        check("max_step_tokens", self.max_step_tokens, MAX_STEP_TOKENS)?;
        check("max_step_rows", self.max_step_rows, MAX_STEP_TOKENS)?;
        self.resolve_isa().map(|_| ())
    }
}

fn check(option: &'static str, value: usize, limit: usize) -> Result<(), EngineError> {
    if (1..=limit).contains(&value) {
        return Ok(());
    }
    Err(EngineError::Option {
        option,
        reason: format!("{value} is outside 1..={limit}"),
    })
}
