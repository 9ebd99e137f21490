//! The parts of a request at this worker: lanes of pages, choices, and where it can stand. It must not
//! know of other requests or of the step loop.

use std::sync::Arc;

use baton_kv_cache::{PageTable, PrefixCursor};

use crate::progress::{LayerProgress, ProgressFactory};

/// Pages being filled, and how far.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) table: PageTable,
    /// Leading tokens whose K and V are in the pages.
    pub(crate) computed: u32,
    /// Where the pages stand in the prefix index; `None` with the prefix cache off.
    pub(crate) cursor: Option<PrefixCursor>,
}

impl Lane {
    /// Another lane that shares all pages so far.
    pub(crate) fn fork(&self) -> Self {
        Self {
            table: self.table.fork(),
            computed: self.computed,
            cursor: self.cursor.clone(),
        }
    }
}

/// One choice.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) completion: Vec<u32>,
    pub(crate) ended: bool,
    /// Own pages; only while the group is [`Phase::Running`].
    pub(crate) lane: Option<Lane>,
    /// Step that last computed for this choice.
    pub(crate) served_at: u64,
}

/// Where a group stands. Every page table belongs to exactly one phase, and leaving the phase is what
/// gives its pages back.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Waits for pages; holds none.
    Queued,
    /// The trunk, shared by all choices, is being computed.
    Prompt(Lane),
    /// Choices compute on their own lanes.
    Running,
    /// Pages granted; their content is to land.
    Reserved {
        table: PageTable,
        cursor: Option<PrefixCursor>,
        reused_pages: u32,
    },
    /// A broken transfer's peer may still write.
    Quarantined {
        /// Held for its `Drop`.
        _table: PageTable,
    },
    /// A transfer may still touch the pages, nothing else happens to them.
    Parked {
        table: PageTable,
        /// Leading pages that the transfer only reads.
        reused_pages: u32,
    },
}

/// Since when a landed sequence runs here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// It has not landed: it is or was computed here.
    Local,
    /// Landed, its first step is to come.
    Waiting,
    /// Landed and has run.
    Stepped,
}

/// What the owner has been told last; only ever rises, also over a preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Nothing,
    Scheduled,
    /// Or the group has landed.
    PromptDone,
    /// The last event, or there is nobody to tell.
    End,
}

/// Who hears of finished layers.
pub(crate) enum Progress {
    Nobody,
    Factory(ProgressFactory),
    Listener(Arc<dyn LayerProgress>),
}
