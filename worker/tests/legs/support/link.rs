//! A TCP link between two workers that a test can slow down or freeze.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::{Grant, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How the link treats bytes on their way to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// As they come.
    Clear,
    /// This many bytes at a time, with a pause after each portion.
    Slow(usize, Duration),
    /// Nothing passes, and nobody is told.
    Frozen,
}

/// Forwards connections to the address that a grant names.
pub(crate) struct Link {
    address: String,
    weather: Arc<watch::Sender<Weather>>,
    _tasks: JoinSet<()>,
}

impl Link {
    /// A link to `target` (`host:port`).
    pub(crate) async fn to(target: String, weather: Weather) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let weather = Arc::new(watch::Sender::new(weather));
        let mut tasks = JoinSet::new();
        let reports = weather.clone();
        tasks.spawn(async move {
            let mut pairs = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&target).await else {
                    continue;
                };
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                pairs.spawn(forward(near_in, far_out, reports.subscribe()));
                pairs.spawn(forward(far_in, near_out, reports.subscribe()));
            }
        });
        Self {
            address,
            weather,
            _tasks: tasks,
        }
    }

    /// A link in the way of a grant's tcp endpoint; the grant names the link from now on.
    pub(crate) async fn in_the_way_of(grant: &mut Grant, weather: Weather) -> Self {
        grant
            .endpoints
            .retain(|endpoint| endpoint.transport == Transport::Tcp);
        let endpoint = grant.endpoints.first_mut().expect("a tcp endpoint");
        let link = Self::to(endpoint.address.clone(), weather).await;
        endpoint.address.clone_from(&link.address);
        link
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = *weather.borrow_and_update();
        let (most, pause) = match now {
            Weather::Clear => (buffer.len(), Duration::ZERO),
            Weather::Slow(bytes, pause) => (bytes.min(buffer.len()), pause),
            Weather::Frozen => {
                if weather.changed().await.is_err() {
                    return;
                }
                continue;
            }
        };
        tokio::select! {
            changed = weather.changed() => if changed.is_err() { return },
            read = from.read(&mut buffer[..most]) => match read {
                Ok(count) if count > 0 => {
                    tokio::time::sleep(pause).await;
                    if to.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
