//! A link against peers that are scripted over HTTP/2: they drain, fall silent, send too much. Connections
//! are memory and time is virtual.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_proto::v1::DrainRequest;
use bytes::Bytes;
use futures::future::join_all;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::frames::frame;
use super::{Call, Link};
use crate::dialer::Dialer;
use crate::http2::{
    MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, PING_INTERVAL, PING_TIMEOUT, STREAM_WINDOW,
};
use crate::stream::BoxStream;

/// Longest that a peer which does not answer can be taken for one that is there.
const NOTICED: Duration = Duration::from_millis(2001);
/// Bound on waits for what must come.
const PATIENCE: Duration = Duration::from_mins(1);

type Taken = (Request<RecvStream>, SendResponse<Bytes>);
type Started = Call<DrainRequest, DrainRequest>;

/// A link whose connections arrive at the receiver.
fn linked() -> (Link, mpsc::UnboundedReceiver<DuplexStream>) {
    let (dialed, connections) = mpsc::unbounded_channel();
    let dialer = Dialer::with_connector(move |_| {
        let (near, far) = tokio::io::duplex(256 << 10);
        let taken = dialed.send(far);
        async move {
            taken.map_err(std::io::Error::other)?;
            let stream: BoxStream = Box::new(near);
            Ok(stream)
        }
    });
    (
        Link::new(dialer, "127.0.0.1:1").expect("an address"),
        connections,
    )
}

async fn call(link: &Link) -> Result<Started, Status> {
    link.call("/test/Call", HeaderMap::new(), &message(1)).await
}

fn message(length: usize) -> DrainRequest {
    DrainRequest {
        worker_id: "w".repeat(length),
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// What a peer does next.
enum Order {
    /// It takes no new calls and ends when those that run have.
    Drain,
    /// It stands still, as a stopped process does.
    Stop,
}

/// The other end of one connection, for as long as it is kept.
struct Peer {
    calls: mpsc::UnboundedReceiver<Taken>,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinSet<()>,
}

impl Peer {
    async fn take(connections: &mut mpsc::UnboundedReceiver<DuplexStream>) -> Self {
        let far = soon("a connection", connections.recv()).await;
        let far = far.expect("a link");
        let (taken, calls) = mpsc::unbounded_channel();
        let (orders, mut ordered) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connection = h2::server::handshake(far).await.expect("HTTP/2");
            loop {
                tokio::select! {
                    call = connection.accept() => match call {
                        Some(Ok(call)) => taken.send(call).expect("a test"),
                        _ => return,
                    },
                    order = ordered.recv() => match order {
                        Some(Order::Drain) => connection.graceful_shutdown(),
                        Some(Order::Stop) | None => std::future::pending().await,
                    },
                }
            }
        });
        Self {
            calls,
            orders,
            task,
        }
    }

    fn does(&self, order: Order) {
        assert!(self.orders.send(order).is_ok(), "the connection has ended");
    }

    /// The next call, taken up.
    async fn answers(&mut self) -> SendStream<Bytes> {
        let (_, mut respond) = soon("a call", self.calls.recv())
            .await
            .expect("a connection");
        respond
            .send_response(Response::new(()), false)
            .expect("open")
    }

    /// Waits for the connection's end.
    async fn ended(&mut self) {
        soon("the connection's end", self.task.join_next()).await;
    }
}

fn say(answer: &mut SendStream<Bytes>, length: usize) {
    answer
        .send_data(frame(&message(length)), false)
        .expect("open");
}

fn end(answer: &mut SendStream<Bytes>) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    answer.send_trailers(trailers).expect("open");
}

async fn hears(call: &mut Started) -> Option<usize> {
    let message = soon("a message", call.message()).await.expect("an answer");
    message.map(|message| message.worker_id.len())
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_drains_finishes_what_runs_and_new_calls_go_elsewhere() {
    let (link, mut connections) = linked();
    let begun = tokio::spawn(async move { (call(&link).await, link) });
    let mut old = Peer::take(&mut connections).await;
    let mut answer = old.answers().await;
    let (running, link) = begun.await.expect("no panic");
    let mut running = running.expect("taken up");
    say(&mut answer, 3);
    assert_eq!(hears(&mut running).await, Some(3));
    old.does(Order::Drain);
    // The word is on its way while nobody waits for anything.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = tokio::spawn(async move { (call(&link).await, link) });
    let mut new = Peer::take(&mut connections).await;
    let mut second = new.answers().await;
    let (elsewhere, link) = begun.await.expect("no panic");
    let mut elsewhere = elsewhere.expect("taken up elsewhere");
    assert!(old.calls.try_recv().is_err(), "a draining peer got a call");
    // What runs goes on to its end, then the old connection ends by itself.
    say(&mut answer, 4);
    assert_eq!(hears(&mut running).await, Some(4));
    end(&mut answer);
    assert_eq!(hears(&mut running).await, None);
    drop((running, answer));
    old.ended().await;
    say(&mut second, 5);
    assert_eq!(hears(&mut elsewhere).await, Some(5));
    // And the new one is kept.
    let begun = tokio::spawn(async move { call(&link).await });
    let _third = new.answers().await;
    begun.await.expect("no panic").expect("taken up");
    assert!(connections.try_recv().is_err(), "a third connection");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stands_still_is_dropped_in_time_and_dialed_again() {
    let (link, mut connections) = linked();
    let link = Arc::new(link);
    let started = Arc::clone(&link);
    let begun = tokio::spawn(async move { call(&started).await });
    let mut stopped = Peer::take(&mut connections).await;
    let _answer = stopped.answers().await;
    let mut running = begun.await.expect("no panic").expect("taken up");
    // Pings that are answered keep a silent call alive.
    let quiet = timeout(20 * (PING_INTERVAL + PING_TIMEOUT), running.message());
    assert!(quiet.await.is_err(), "a peer that lives was dropped");
    stopped.does(Order::Stop);
    let since = Instant::now();
    let lost = soon("the loss", running.message()).await;
    let lost = lost.expect_err("the connection is gone");
    assert!(since.elapsed() <= NOTICED, "{:?}", since.elapsed());
    assert!(since.elapsed() >= PING_TIMEOUT, "{:?}", since.elapsed());
    let source = std::error::Error::source(&lost);
    assert!(source.is_some(), "not said to be the connection's: {lost}");
    let begun = tokio::spawn(async move { call(&link).await });
    let mut next = Peer::take(&mut connections).await;
    let _answer = next.answers().await;
    begun.await.expect("no panic").expect("taken up");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_connects_and_says_nothing_is_given_up_in_time() {
    let (link, mut connections) = linked();
    let since = Instant::now();
    let silent = soon("the end", call(&link)).await;
    silent.expect_err("nobody has answered");
    assert!(since.elapsed() <= NOTICED, "{:?}", since.elapsed());
    assert!(connections.try_recv().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_slow_holds_no_more_than_a_window() {
    let (link, mut connections) = linked();
    let link = Arc::new(link);
    let started = Arc::clone(&link);
    let begun = tokio::spawn(async move { call(&started).await });
    let mut peer = Peer::take(&mut connections).await;
    let mut answer = peer.answers().await;
    let mut slow = begun.await.expect("no panic").expect("taken up");
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let mut pouring = JoinSet::new();
    pouring.spawn(async move {
        loop {
            let mut rest = frame(&message(1000));
            while !rest.is_empty() {
                answer.reserve_capacity(rest.len());
                let room = std::future::poll_fn(|cx| answer.poll_capacity(cx)).await;
                let room = room.expect("open").expect("open").min(rest.len());
                answer.send_data(rest.split_to(room), false).expect("open");
                counted.fetch_add(room, Ordering::Relaxed);
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let window = STREAM_WINDOW as usize;
    assert_eq!(sent.load(Ordering::Relaxed), window, "bytes for nobody");
    // Others on the connection have their own.
    let begun = tokio::spawn(async move { call(&link).await });
    let mut other = peer.answers().await;
    let mut elsewhere = begun.await.expect("no panic").expect("taken up");
    say(&mut other, 7);
    assert_eq!(hears(&mut elsewhere).await, Some(7));
    for _ in 0..100 {
        assert_eq!(hears(&mut slow).await, Some(1000));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = sent.load(Ordering::Relaxed);
    assert!(all > window, "what is read makes room");
    assert!(all <= 100 * 1008 + 2 * window, "{all} bytes");
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_refused_before_it_has_come() {
    let (link, mut connections) = linked();
    let link = Arc::new(link);
    let started = Arc::clone(&link);
    let begun = tokio::spawn(async move { call(&started).await });
    let mut peer = Peer::take(&mut connections).await;
    let mut answer = peer.answers().await;
    let mut running = begun.await.expect("no panic").expect("taken up");
    let length = u32::try_from(MAX_MESSAGE_BYTES + 1).expect("small");
    let head = [&[0][..], &length.to_be_bytes()].concat();
    answer.send_data(head.into(), false).expect("open");
    let refused = soon("a refusal", running.message()).await;
    let refused = refused.expect_err("a message over the limit");
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");

    let begun = tokio::spawn(async move { call(&link).await });
    let (_, mut respond) = soon("a call", peer.calls.recv())
        .await
        .expect("a connection");
    let mut response = Response::new(());
    for number in 0..MAX_HEADER_BYTES / 512 {
        let name = format!("x-{number}").parse::<http::HeaderName>();
        let value = HeaderValue::from_str(&"v".repeat(600));
        let headers = response.headers_mut();
        headers.insert(name.expect("a name"), value.expect("a value"));
    }
    // Whether the peer's side or this one refuses, the call fails.
    let _ = respond.send_response(response, false);
    let refused = soon("a refusal", begun).await.expect("no panic");
    refused.expect_err("headers over the limit");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_connection_share_it_or_its_failure() {
    let (link, mut connections) = linked();
    let link = Arc::new(link);
    let started = Arc::clone(&link);
    let all = tokio::spawn(async move { join_all((0..50).map(|_| call(&started))).await });
    let mut peer = Peer::take(&mut connections).await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(peer.answers().await);
    }
    for call in all.await.expect("no panic") {
        call.expect("taken up");
    }
    assert!(connections.try_recv().is_err(), "a second connection");

    let tried = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tried);
    let dialer = Dialer::with_connector(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending()
    });
    let link = Link::new(dialer, "127.0.0.1:1").expect("an address");
    let since = Instant::now();
    for call in soon("failures", join_all((0..50).map(|_| call(&link)))).await {
        let error = call.expect_err("nobody is there");
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    }
    assert_eq!(tried.load(Ordering::Relaxed), 1, "attempts");
    assert!(since.elapsed() <= NOTICED, "{:?}", since.elapsed());
    // Who comes later tries anew.
    let late = soon("a failure", call(&link)).await;
    late.expect_err("nobody is there");
    assert_eq!(tried.load(Ordering::Relaxed), 2, "attempts");
}
