//! Faults that can be planted, each in a part that is given to the product at construction: the engine,
//! what stands in front of a decode worker, or etcd. A run with one of them must fail. It must not know scenarios.

use baton_engine::StepEngine;

use crate::etcd::service::Flaw;
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
    /// A watch goes on one revision later than it should.
    Revisions,
    /// That its lease has ended is kept from a worker.
    Leases,
    /// What a worker has registered outlives it for ever.
    Endless,
}

impl Planted {
    /// The engine of a run with this fault.
    pub fn engine(self, engine: OracleEngine) -> Box<dyn StepEngine> {
        let defect = match self {
            Self::Generations => Defect::Generations,
            Self::Copies => Defect::Copies,
            Self::Company => Defect::Company,
            _ => return Box::new(engine),
        };
        Box::new(engine.with(defect))
    }

    /// What the front of its decode workers does.
    pub fn lie(self) -> Option<Lie> {
        match self {
            Self::Repeats => Some(Lie::Repeats),
            Self::Positions => Some(Lie::Positions),
            Self::Grants => Some(Lie::Grants),
            _ => None,
        }
    }

    /// What is wrong with etcd.
    pub fn flaw(self) -> Option<Flaw> {
        match self {
            Self::Revisions => Some(Flaw::Revisions),
            Self::Leases => Some(Flaw::Leases),
            Self::Endless => Some(Flaw::Endless),
            _ => None,
        }
    }
}
