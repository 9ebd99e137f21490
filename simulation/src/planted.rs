//! Faults that can be planted, each in a part that is given to the product at construction: the engine, or
//! what stands in front of a decode worker. A run with one of them must fail. It must not know scenarios.

use baton_engine::StepEngine;

use crate::front::Lie;
use crate::oracle::{Defect, OracleEngine};

/// A faulty part in a sound one's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Pages are known by their number, whoever has them.
    Generations,
    /// A page that choices share is not copied before one of them writes.
    Copies,
    /// A row is computed otherwise in the company of others.
    Company,
    /// A resumed sequence says its first token twice.
    Repeats,
    /// A resumed sequence counts its positions from where it goes on.
    Positions,
    /// A grant that is given up keeps its pages.
    Grants,
}

impl Planted {
    /// The engine of a run with this fault.
    pub fn engine(self, engine: OracleEngine) -> Box<dyn StepEngine> {
        let defect = match self {
            Self::Generations => Defect::Generations,
            Self::Copies => Defect::Copies,
            Self::Company => Defect::Company,
            Self::Repeats | Self::Positions | Self::Grants => return Box::new(engine),
        };
        Box::new(engine.with(defect))
    }

    /// What the front of its decode workers does.
    pub fn lie(self) -> Option<Lie> {
        match self {
            Self::Generations | Self::Copies | Self::Company => None,
            Self::Repeats => Some(Lie::Repeats),
            Self::Positions => Some(Lie::Positions),
            Self::Grants => Some(Lie::Grants),
        }
    }
}
