//! How a worker becomes known to routers. It must not know what is registered.

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::{Announcer, Dialer, EtcdRegistration, Registration as State};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::load::LoadReports;
use crate::worker::Routers;
use crate::{Membership, Role, WorkerError};

/// A worker that is in etcd and that no router has come to for this long says so.
const ROUTER_WAIT: Duration = Duration::from_secs(10);

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
    /// Routers find the worker by themselves.
    Static(Listed),
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
    /// Registered in etcd.
    Etcd(InEtcd),
}

/// A worker that waits to be found: it may be placed unless all who came serve another model.
pub(crate) struct Listed {
    routers: watch::Receiver<Routers>,
    said: Option<News>,
}

/// A registration in etcd, and who has come of it.
pub(crate) struct InEtcd {
    registration: EtcdRegistration,
    routers: watch::Receiver<Routers>,
    /// When the wait for a router is told; `None` before the registration and after having told.
    tell_at: Option<Instant>,
    /// Whether the worker has been said to be placeable: what etcd or routers do later takes nothing
    /// away, for routers that are there go by their own connection.
    said: bool,
}

impl Registration {
    /// Starts to register; needs a tokio runtime.
    ///
    /// # Errors
    /// The router's address is not one.
    pub(crate) fn start<R: Role>(
        role: &Arc<R>,
        membership: &Membership,
        dialer: &Dialer,
    ) -> Result<Self, WorkerError> {
        let router = match membership {
            Membership::Router(router) => router,
            Membership::Static => {
                return Ok(Self::Static(Listed {
                    routers: role.worker().routers(),
                    said: None,
                }));
            }
            Membership::Etcd { options, lease } => {
                let worker = role.worker();
                return Ok(Self::Etcd(InEtcd {
                    registration: EtcdRegistration::start(
                        options.clone(),
                        *lease,
                        worker.info(),
                        dialer,
                    ),
                    routers: worker.routers(),
                    tell_at: None,
                    said: false,
                }));
            }
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
        let announcer = Announcer::start(dialer, routers, role.worker().info(), &reader)?;
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
            Self::Static(listed) => listed.next().await,
            Self::Announced { state, drain, .. } => tokio::select! {
                Ok(()) = state.changed() => match *state.borrow_and_update() {
                    State::Accepted => News::Placeable,
                    State::Connecting { .. } | State::Incompatible { .. } => News::NotPlaceable,
                },
                Ok(()) = drain.changed() => News::Drain,
                else => std::future::pending().await,
            },
            Self::Etcd(in_etcd) => in_etcd.next().await,
        }
    }

    /// Takes the worker out of etcd, so that no router comes any more, and waits for it, bounded. The other
    /// kinds of membership show the drain in load reports, and end with the process.
    pub(crate) async fn withdrawn(&mut self) {
        if let Self::Etcd(in_etcd) = self {
            in_etcd.registration.withdrawn().await;
        }
    }
}

impl Listed {
    async fn next(&mut self) -> News {
        loop {
            let routers = *self.routers.borrow_and_update();
            let news = if routers.fitting > 0 || routers.other == 0 {
                News::Placeable
            } else {
                News::NotPlaceable
            };
            if self.said != Some(news) {
                self.said = Some(news);
                return news;
            }
            // The count lives as long as the worker.
            let _ = self.routers.changed().await;
        }
    }
}

impl InEtcd {
    async fn next(&mut self) -> News {
        if self.said {
            return std::future::pending().await;
        }
        let mut registered = self.registration.registered();
        if registered.wait_for(|is| *is).await.is_err() {
            // Withdrawn before it was ever registered.
            return std::future::pending().await;
        }
        let tell_at = *self
            .tell_at
            .get_or_insert_with(|| Instant::now() + ROUTER_WAIT);
        let came = self.routers.wait_for(|routers| routers.fitting > 0);
        if tokio::time::timeout_at(tell_at, came).await.is_err() {
            tracing::warn!(
                "not ready: registered in etcd for {ROUTER_WAIT:?}, but no router has come; \
                 is one running with the same --membership and --etcd-prefix?"
            );
            // The count lives as long as the worker.
            let _ = self.routers.wait_for(|routers| routers.fitting > 0).await;
        }
        self.said = true;
        News::Placeable
    }
}
