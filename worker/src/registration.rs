//! How a worker becomes known to routers. It must not know what is registered.

use std::sync::Arc;

use baton_cluster::{Announcer, Registration as State};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::load::LoadReports;
use crate::{Membership, Role, WorkerError};

/// What happened to the registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The worker may be placed.
    Placeable,
    /// It may not: the router has gone (and is tried again), or serves another model.
    NotPlaceable,
    /// The router wants the worker to drain.
    Drain,
}

/// Keeps a worker registered until dropped.
pub(crate) enum Registration {
    /// Routers find the worker by themselves; whether this has been said.
    Static(bool),
    /// Registered with a router.
    Announced {
        /// Holds the stream to the router.
        _announcer: Announcer,
        /// How the registration stands.
        state: watch::Receiver<State>,
        /// Asks for a drain.
        drain: watch::Receiver<bool>,
        /// Feeds load reports; ends with the registration.
        _feed: JoinSet<()>,
    },
}

impl Registration {
    /// Starts to register; needs a tokio runtime.
    ///
    /// # Errors
    /// The router's address is not one.
    pub(crate) fn start<R: Role>(
        role: &Arc<R>,
        membership: &Membership,
    ) -> Result<Self, WorkerError> {
        let Membership::Router(router) = membership else {
            return Ok(Self::Static(false));
        };
        let (load, reader) = watch::channel(role.load());
        let mut reports = LoadReports::new(role.clone());
        let mut feed = JoinSet::new();
        feed.spawn(async move {
            loop {
                load.send_replace(reports.next().await);
            }
        });
        let routers = std::slice::from_ref(router);
        let announcer = Announcer::start(routers, role.worker().info(), &reader)?;
        // One router, hence one state.
        let state = announcer.states()[0].clone();
        let drain = announcer.drain_requested();
        Ok(Self::Announced {
            _announcer: announcer,
            state,
            drain,
            _feed: feed,
        })
    }

    /// Waits for the next change.
    pub(crate) async fn next(&mut self) -> News {
        match self {
            Self::Static(true) => std::future::pending().await,
            Self::Static(said) => {
                *said = true;
                News::Placeable
            }
            Self::Announced { state, drain, .. } => tokio::select! {
                Ok(()) = state.changed() => match *state.borrow_and_update() {
                    State::Accepted => News::Placeable,
                    State::Connecting { .. } | State::Incompatible { .. } => News::NotPlaceable,
                },
                Ok(()) = drain.changed() => News::Drain,
                else => std::future::pending().await,
            },
        }
    }
}
