//! Answers under way, counted from a call's beginning until its connection has taken the last of it: a router
//! that ends knows by them when everybody has been told, and cuts off what takes too long. It must not know
//! what they say.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body as AnyBody, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;
use tonic::server::NamedService;
use tower::Service;

/// How many there are, and whether they must end now.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    open: Arc<AtomicUsize>,
    cut_off: watch::Sender<bool>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Open(Arc<AtomicUsize>);

impl Answers {
    pub(crate) fn new() -> Self {
        Self {
            open: Arc::default(),
            cut_off: watch::Sender::new(false),
        }
    }

    pub(crate) fn begin(&self) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(&self.open))
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Requests end now, each with an error that says why.
    pub(crate) fn cut_off(&self) {
        self.cut_off.send_replace(true);
    }

    /// Waits until requests must end; usually for ever.
    pub(crate) async fn are_cut_off(&self) {
        // The sender is here, so there is no other end of waiting.
        let _ = self.cut_off.subscribe().wait_for(|cut_off| *cut_off).await;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that holds something until its connection has taken it all.
pub(crate) struct HeldBody<B, H> {
    body: B,
    _held: H,
}

impl<B, H> HeldBody<B, H> {
    pub(crate) fn new(body: B, held: H) -> Self {
        Self { body, _held: held }
    }
}

impl<B: HttpBody + Unpin, H: Unpin> HttpBody for HeldBody<B, H> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A gRPC service whose answers are counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted<S> {
    service: S,
    answers: Answers,
}

impl<S> Counted<S> {
    pub(crate) fn new(service: S, answers: &Answers) -> Self {
        Self {
            service,
            answers: answers.clone(),
        }
    }
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<AnyBody>, E>> + Send>>;

impl<S, R, B> Service<Request<R>> for Counted<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: HttpBody<Data = axum::body::Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<AnyBody>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let open = self.answers.begin();
        let answering = self.service.call(request);
        Box::pin(async move {
            let held = |body| AnyBody::new(HeldBody::new(body, open));
            Ok(answering.await?.map(held))
        })
    }
}
