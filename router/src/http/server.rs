//! HTTP/1.1 on connections, under limits of their number, their heads and their silence. It must not know
//! what calls do.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use baton_cluster::{Accept, Accepted, BoxStream, PeerInfo, Plane, Shown, Strangers, Tls};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::connections::{Busy, Connections};
use super::patience::Patient;
use crate::answers::{Answers, HeldBody};
use crate::counters::{Counters, route};
use crate::lanes::Load;

/// Time for TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(5);
/// Most lines of a head.
const MAX_HEADERS: usize = 64;
/// Bytes of a head, and of an answer that are under way unread.
const MAX_BUFFER: usize = 64 << 10;
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves HTTP until it is told to stop.
#[derive(Clone)]
pub(crate) struct HttpServer {
    pub(crate) routes: Router,
    pub(crate) counters: Arc<Counters>,
    pub(crate) answers: Answers,
    pub(crate) tls: Option<Tls>,
    /// Time for a request's head to arrive, from the connection's beginning or the end of the last request.
    pub(crate) head_timeout: Duration,
    /// A request whose client takes nothing for this long is given up, and its connection after twice that.
    pub(crate) write_deadline: Duration,
}

impl HttpServer {
    /// Serves at most so many connections, and says in `load` which of them are in use, until `stop`; then lets what
    /// is being said be finished. The caller bounds that time.
    pub(crate) async fn serve(
        self,
        mut listener: impl Accept,
        limit: usize,
        load: Arc<Load>,
        stop: watch::Receiver<bool>,
    ) {
        let mut connections = Connections::new(limit, load);
        let mut stopping = stop.clone();
        loop {
            tokio::select! {
                () = told(&mut stopping) => break,
                accepted = listener.next_connection() => match accepted {
                    Ok(accepted) => {
                        let serve = |busy| self.connection(accepted, busy, stop.clone());
                        if !connections.add(serve) {
                            tracing::debug!(limit, "an HTTP connection is refused: all are busy");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        connections.ended().await;
    }

    /// One connection, from its first byte to its last.
    fn connection(
        &self,
        accepted: Accepted,
        busy: Busy,
        mut stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (routes, tls, patience) = (self.routes.clone(), self.tls.clone(), self.write_deadline);
        let head_timeout = self.head_timeout;
        let (counters, answers) = (Arc::clone(&self.counters), self.answers.clone());
        async move {
            let address = accepted.address;
            let Some((stream, shown)) = secured(accepted, tls).await else {
                return;
            };
            let peer = PeerInfo { address, shown };
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (routes, held) = (routes.clone(), (busy.hold(), answers.begin()));
                let (counters, route) = (Arc::clone(&counters), route(request.uri().path()));
                let mut request: Request = request.map(Body::new);
                request.extensions_mut().insert(peer.clone());
                async move {
                    let response = routes.oneshot(request).await?;
                    counters.called(route, response.status().as_u16());
                    Ok::<_, Infallible>(response.map(|body| HeldBody::new(body, held)))
                }
            });
            // The request is given up before its connection, so that it is told and counted.
            let stream = TokioIo::new(Patient::new(stream, patience * 2));
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_timeout)
                .max_headers(MAX_HEADERS)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(stream, service);
            let mut serving = std::pin::pin!(serving);
            // How a connection ends is its client's business.
            tokio::select! {
                _ = &mut serving => return,
                () = told(&mut stop) => {}
            }
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// Waits to be told to stop; the sender's end says so too.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Opens TLS where it is asked for.
async fn secured(accepted: Accepted, tls: Option<Tls>) -> Option<(BoxStream, Shown)> {
    let Some(tls) = tls else {
        return Some((accepted.stream, Shown::default()));
    };
    let opening = tls.accept(Plane::Web, Strangers::Admitted, accepted.stream);
    match tokio::time::timeout(TLS_TIMEOUT, opening).await {
        Ok(Ok(opened)) => Some(opened),
        Ok(Err(error)) => {
            tracing::debug!(address = ?accepted.address, %error, "no TLS on an HTTP connection");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use baton_cluster::Accepting;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    struct Door(mpsc::Receiver<DuplexStream>);

    impl Accept for Door {
        fn next_connection(&mut self) -> Accepting<'_> {
            Box::pin(async {
                let Some(stream) = self.0.recv().await else {
                    return std::future::pending().await;
                };
                Ok(Accepted {
                    stream: Box::new(stream),
                    address: None,
                })
            })
        }
    }

    #[tokio::test]
    async fn sec_05_heads_and_idle_connections_have_their_time() {
        let head_timeout = Duration::from_millis(200);
        let server = HttpServer {
            routes: Router::new().route("/", get(async || "well")),
            counters: Arc::default(),
            answers: Answers::new(),
            tls: None,
            head_timeout,
            write_deadline: Duration::from_secs(10),
        };
        let (open, door) = mpsc::channel(1);
        let (_stop, stopping) = watch::channel(false);
        let serving = tokio::spawn(server.serve(Door(door), 10, Arc::default(), stopping));
        // Says nothing, half a head, or a whole one and then nothing more.
        for (said, answered) in [
            ("", false),
            ("GET / HTTP/1.1\r\nHost: x\r\nX-A:", false),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", true),
        ] {
            let (ours, mut theirs) = duplex(1024);
            let begun = Instant::now();
            open.send(ours).await.unwrap();
            theirs.write_all(said.as_bytes()).await.unwrap();
            let mut heard = Vec::new();
            let reading = theirs.read_to_end(&mut heard);
            let ended = tokio::time::timeout(head_timeout * 50, reading).await;
            assert!(ended.is_ok(), "it is held open after {said:?}");
            assert!(begun.elapsed() >= head_timeout, "{said:?}");
            let heard = String::from_utf8(heard).unwrap();
            assert_eq!(heard.contains("200 OK"), answered, "{heard}");
        }
        serving.abort();
    }
}
