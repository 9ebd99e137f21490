//! One listener, a door for each lane: connections are accepted in one place and go to the lane that has the fewest,
//! which makes them its own. It must not know what is said on them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_cluster::{Accept, Accepted, Accepting, Held};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Connections that a lane has not taken yet.
const UNTAKEN: usize = 64;
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Connections and requests of one door.
#[derive(Debug, Default)]
pub(crate) struct Load {
    open: AtomicUsize,
    /// Connections with a request in progress, where the door's server says so.
    pub(crate) busy: AtomicUsize,
}

/// A connection on its way to its lane; it counts until it is dropped.
struct Passed {
    stream: std::net::TcpStream,
    address: SocketAddr,
    open: Open,
}

struct Open(Arc<Load>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the connections of one lane come in.
pub(crate) struct LaneDoor {
    passed: mpsc::Receiver<Passed>,
    pub(crate) load: Arc<Load>,
    /// Connections that it may have.
    pub(crate) limit: usize,
}

/// The same, where connections are passed on.
struct Way {
    pass: mpsc::Sender<Passed>,
    load: Arc<Load>,
    limit: usize,
}

/// So many doors, and what passes connections to them until all are dropped. None of them has a share of nothing: of
/// few connections there are fewer doors.
pub(super) fn doors(
    listener: TcpListener,
    count: usize,
    limit: usize,
) -> (Vec<LaneDoor>, impl Future<Output = ()> + Send + use<>) {
    let count = count.min(limit).max(1);
    let mut doors = Vec::with_capacity(count);
    let mut ways = Vec::with_capacity(count);
    for number in 0..count {
        let (pass, passed) = mpsc::channel(UNTAKEN);
        let load = Arc::<Load>::default();
        let limit = limit / count + usize::from(number < limit % count);
        ways.push(Way {
            pass,
            load: Arc::clone(&load),
            limit,
        });
        doors.push(LaneDoor {
            passed,
            load,
            limit,
        });
    }
    (doors, spread(listener, ways))
}

async fn spread(listener: TcpListener, ways: Vec<Way>) {
    let mut last = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed(&ways) => return,
        };
        let passed = accepted.and_then(|(stream, address)| {
            stream.set_nodelay(true)?;
            Ok((stream.into_std()?, address))
        });
        match passed {
            Ok((stream, address)) => {
                last = choose(&ways, last);
                pass(stream, address, &ways[last]).await;
            }
            // Out of file descriptors, or the peer is gone already: the listener lives on.
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn closed(ways: &[Way]) {
    for way in ways {
        way.pass.closed().await;
    }
}

/// The way of the next connection, after the one that took this way: the least by [`Way::key`]. Of equal ones the
/// last: who connects again, before its old connection's end is noticed, finds the memory that it used there.
fn choose(ways: &[Way], last: usize) -> usize {
    let least = (0..ways.len()).min_by_key(|&at| (ways[at].key(), at != last));
    least.unwrap_or(last)
}

async fn pass(stream: std::net::TcpStream, address: SocketAddr, way: &Way) {
    way.load.open.fetch_add(1, Ordering::Relaxed);
    let open = Open(Arc::clone(&way.load));
    let passed = Passed {
        stream,
        address,
        open,
    };
    // A lane that has ended takes none: the connection is closed.
    let _ = way.pass.send(passed).await;
}

impl Way {
    /// The least goes first: who has room by connections, the others by those in use, whose place nobody else takes.
    fn key(&self) -> (bool, usize) {
        let open = self.load.open.load(Ordering::Relaxed);
        if open < self.limit {
            (false, open)
        } else {
            (true, self.load.busy.load(Ordering::Relaxed))
        }
    }
}

impl Accept for LaneDoor {
    fn next_connection(&mut self) -> Accepting<'_> {
        Box::pin(async {
            let Some(passed) = self.passed.recv().await else {
                // Nobody accepts any more.
                return std::future::pending().await;
            };
            let stream = TcpStream::from_std(passed.stream)?;
            Ok(Accepted {
                stream: Box::new(Held::new(stream, passed.open)),
                address: Some(passed.address),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn connections_go_where_there_are_fewest() {
        let (listener, address) = listener().await;
        let (mut doors, spread) = doors(listener, 2, 10);
        let spread = tokio::spawn(spread);
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            first.push(doors[0].next_connection().await.unwrap());
            second.push(doors[1].next_connection().await.unwrap());
        }
        // Two places become free at the second one.
        second.truncate(1);
        for _ in 0..2 {
            clients.push(TcpStream::connect(address).await.unwrap());
            second.push(doors[1].next_connection().await.unwrap());
        }
        assert_eq!(doors[0].load.open.load(Ordering::Relaxed), 3);
        drop(doors);
        // Without doors nobody accepts.
        tokio::time::timeout(Duration::from_secs(10), spread)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn sec_05_few_places_are_shared_exactly_and_full_doors_are_chosen_by_what_is_in_use() {
        for (count, limit) in [(1, 1), (4, 2), (3, 10), (2, 1024)] {
            let (listener, _) = listener().await;
            let (doors, _spread) = doors(listener, count, limit);
            assert_eq!(doors.iter().map(|door| door.limit).sum::<usize>(), limit);
            assert!(doors.iter().all(|door| door.limit > 0));
        }
        let way = |open, busy| {
            let load = Arc::<Load>::default();
            load.open.store(open, Ordering::Relaxed);
            load.busy.store(busy, Ordering::Relaxed);
            let (pass, _) = mpsc::channel(1);
            Way {
                pass,
                load,
                limit: 2,
            }
        };
        assert!(way(1, 1).key() < way(2, 0).key(), "room first");
        assert!(way(2, 0).key() < way(3, 2).key());
        let ways = [way(1, 0), way(1, 0), way(0, 0)];
        assert_eq!(choose(&ways, 1), 2);
        assert_eq!([0, 1].map(|last| choose(&ways[..2], last)), [0, 1]);
    }
}
