//! How pieces get from this side's pages to the receiver's: the one thing in which transports differ
//! for a sender. It must not know the protocol.

use std::sync::Arc;

use baton_kv_cache::KvLayout;
use baton_proto::domain::Transport;

use super::run::Run;
use crate::shm::PeerMemory;

/// What a writer did with the pieces of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// They must follow their head on the wire.
    OnTheWire,
    /// They lie in the receiver's pages.
    InPlace,
}

/// A transport, as a sender sees it.
pub(crate) trait PageWriter: Send {
    fn transport(&self) -> Transport;
    /// Takes one piece of a run, `step` pages in.
    fn write(&mut self, run: &Run, step: u32, piece: &[u8]);
    /// What happens to pieces given to [`PageWriter::write`].
    fn carried(&self) -> Carried;
}

/// tcp: pieces follow their head, straight from the pages.
pub(crate) struct OnTheWire;

impl PageWriter for OnTheWire {
    fn transport(&self) -> Transport {
        Transport::Tcp
    }
    fn write(&mut self, _: &Run, _: u32, _: &[u8]) {}
    fn carried(&self) -> Carried {
        Carried::OnTheWire
    }
}

/// shm: pieces are copied into the receiver's pool, which this process has mapped.
pub(crate) struct InPlace {
    memory: Arc<PeerMemory>,
    /// The receiver's layout: its pool has its own number of pages.
    layout: KvLayout,
}

impl InPlace {
    /// `memory` has been mapped for exactly this layout.
    pub(crate) fn new(memory: Arc<PeerMemory>, layout: KvLayout) -> Self {
        Self { memory, layout }
    }
}

impl PageWriter for InPlace {
    fn transport(&self) -> Transport {
        Transport::Shm
    }
    fn write(&mut self, run: &Run, step: u32, piece: &[u8]) {
        self.memory.write(
            self.layout.piece_offset(run.layer, run.slot_page + step),
            piece,
        );
    }
    fn carried(&self) -> Carried {
        Carried::InPlace
    }
}
