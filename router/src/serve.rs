//! Assembling the router and serving it, gRPC on one listener and HTTP on another.
//!
//! It must not know configuration files or signals.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_cluster::http2::MAX_MESSAGE_BYTES;
use baton_cluster::{Accept, Dialer, Membership, Places, Strangers, Tls, http2, incoming_under};
use baton_proto::FILE_DESCRIPTOR_SET;
use baton_proto::ids::Incarnation;
use baton_proto::v1::admin_service_server::AdminServiceServer;
use baton_proto::v1::inference_service_server::InferenceServiceServer;
use baton_telemetry::metrics::Metrics;
use baton_telemetry::traces::Tracer;
use rand::Rng as _;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic_health::server::HealthReporter;

use crate::answers::{Answers, Counted};
use crate::clients::Clients;
use crate::config::RouterConfig;
use crate::counters::Counters;
use crate::error::{ConfigError, ServeError};
use crate::gate::Gate;
use crate::guard::{For, Guard};
use crate::http::{HttpServer, routes};
use crate::keys::ApiKeys;
use crate::lanes::{LaneDoor, Lanes};
use crate::metrics::{self, Timings};
use crate::model::ServedModel;
use crate::operations::Operations;
use crate::recent::Recent;
use crate::services::{Admin, Inference, health, keep_health, set_ready};
use crate::shared::Shared;
use crate::tokenizing::Tokenizing;
use crate::workers::Directory;

/// How often a router that shuts down looks whether its requests have ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Time for the head of an HTTP request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time, at the limit, for requests to end with an error that their clients take.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for connections to close once no answer is left.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A router that is ready to serve.
#[derive(Debug)]
pub struct Router {
    shared: Arc<Shared>,
    membership: Arc<Membership>,
    incarnation: Incarnation,
    guard: Guard,
    metrics: Arc<Metrics>,
}

/// Where clients come in, and the runtime that serves them.
struct Entrance {
    runtime: Handle,
    grpc: Box<dyn Accept>,
    http: Option<LaneDoor>,
}

impl Router {
    /// Puts the parts together. Workers are reached through `dialer`.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(
        config: RouterConfig,
        model: ServedModel,
        membership: Membership,
        dialer: Dialer,
    ) -> Result<Self, ConfigError> {
        let config = config.validate()?;
        let metrics = Metrics::new();
        metrics.set_role("router");
        let counters = Arc::new(Counters::default());
        let directory = Directory::new(
            model.clone(),
            membership.table(),
            dialer,
            Arc::clone(&counters),
        );
        let guard = Guard {
            tls: None,
            keys: None,
            counters: Arc::clone(&counters),
        };
        let shared = Shared {
            gate: Gate::new("a place", config.max_running, config.max_waiting),
            answers: Answers::new(),
            clients: Clients::new(config.max_per_client),
            tokenizing: Tokenizing::new(config.tokenizer_threads, config.max_waiting),
            recent: Recent::new(model.name()),
            config,
            model,
            directory,
            counters,
            timings: Arc::new(Timings::new(&metrics)),
            tracer: OnceLock::new(),
        };
        let (shared, membership) = (Arc::new(shared), Arc::new(membership));
        metrics::read(&metrics, &shared, &membership);
        Ok(Self {
            shared,
            membership,
            incarnation: Incarnation(rand::rng().random_range(1..=u64::MAX)),
            guard,
            metrics,
        })
    }

    /// Serves under TLS, if there is a certificate. Workers, and clients where they have a CA, must show
    /// one too.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.guard.tls = tls.filter(Tls::serves);
        self
    }

    /// Serves clients that present one of these keys, and nobody else.
    #[must_use]
    pub fn with_keys(mut self, keys: Option<ApiKeys>) -> Self {
        self.guard.keys = keys;
        self
    }

    /// Tells of requests as spans.
    #[must_use]
    pub fn with_traces(self, tracer: Tracer) -> Self {
        // The first one stays: spans of one router go one way.
        let _ = self.shared.tracer.set(tracer);
        self
    }

    /// What this router tells Prometheus.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Serves gRPC where it is called until `shutdown` completes, then lets running requests end within the configured
    /// time.
    ///
    /// # Errors
    /// The transport failed.
    pub async fn serve(
        self,
        listener: impl Accept,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let here = Entrance {
            runtime: Handle::current(),
            grpc: Box::new(listener),
            http: None,
        };
        self.serve_at(vec![here], shutdown).await
    }

    /// Serves gRPC, and HTTP if there is a listener for it, as [`Self::serve`] does, but on these lanes: each connection
    /// is served on one of them.
    ///
    /// # Errors
    /// The transport failed.
    pub async fn serve_on(
        self,
        lanes: &Lanes,
        grpc: TcpListener,
        http: Option<TcpListener>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let limit = self.shared.config.max_connections;
        // Ended when they are dropped.
        let mut spreading = JoinSet::new();
        let mut doors = |listener| {
            let (doors, spread) = lanes.doors(listener, limit);
            spreading.spawn(spread);
            doors
        };
        let grpc = doors(grpc);
        let mut web = http.map(doors).unwrap_or_default().into_iter();
        let entrances = grpc.into_iter().zip(lanes.runtimes());
        let entrances = entrances.map(|(door, runtime)| Entrance {
            runtime: runtime.clone(),
            grpc: Box::new(door),
            http: web.next(),
        });
        self.serve_at(entrances.collect(), shutdown).await
    }

    async fn serve_at(
        self,
        entrances: Vec<Entrance>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let (reporter, health) = health().await;
        let routes = self.routes(Routes::new(health))?;
        // Health is for everyone; services look at certificates themselves.
        let tls = self.guard.tls.clone().map(|tls| (tls, Strangers::Admitted));
        let places = Places::new(self.shared.config.max_connections).shared_by(entrances.len());
        let (stop, stopping) = watch::channel(false);
        // Ended when they are dropped.
        let mut keeping = JoinSet::new();
        keeping.spawn(self.metrics().keep());
        let (mut serving, mut web) = (JoinSet::new(), JoinSet::new());
        let server = self.http_server();
        for entrance in entrances {
            let Entrance {
                runtime,
                grpc,
                http,
            } = entrance;
            let (routes, places, tls) = (routes.clone(), places.clone(), tls.clone());
            let mut stopped = stopping.clone();
            let serve = async move {
                let connections = incoming_under(grpc, places, tls);
                let server = http2::server().add_routes(routes);
                let until = async move {
                    // Closed with the sender: either way serving ends.
                    let _ = stopped.wait_for(|stop| *stop).await;
                };
                server
                    .serve_with_incoming_shutdown(connections, until)
                    .await
            };
            serving.spawn_on(serve, &runtime);
            if let Some(door) = http {
                let (limit, load) = (door.limit, Arc::clone(&door.load));
                let serve = server.clone().serve(door, limit, load, stopping.clone());
                web.spawn_on(serve, &runtime);
            }
        }
        let ready = keep_health(reporter.clone(), Arc::clone(&self.shared));
        tokio::select! {
            result = ended(&mut serving) => return Ok(result?),
            () = ready => {}
            () = shutdown => {}
        }
        tokio::select! {
            result = ended(&mut serving) => return Ok(result?),
            () = self.drain(&reporter) => {}
        }
        drop(stop);
        let closing = async {
            while !serving.is_empty() {
                ended(&mut serving).await?;
            }
            while web.join_next().await.is_some() {}
            Ok::<_, ServeError>(())
        };
        match tokio::time::timeout(CLOSE_TIMEOUT, closing).await {
            Ok(result) => result,
            // Registrations never end by themselves; they are dropped with the process.
            Err(_) => Ok(()),
        }
    }

    fn http_server(&self) -> HttpServer {
        HttpServer {
            routes: routes(&self.operations(), self.guard.clone(), self.metrics()),
            counters: Arc::clone(&self.shared.counters),
            answers: self.shared.answers.clone(),
            tls: self.guard.tls.clone(),
            head_timeout: HEAD_TIMEOUT,
            write_deadline: self.shared.config.write_deadline,
        }
    }

    fn operations(&self) -> Arc<Operations> {
        Arc::new(Operations {
            shared: Arc::clone(&self.shared),
            membership: Arc::clone(&self.membership),
            incarnation: self.incarnation,
            keyed: self.guard.keys.is_some(),
        })
    }

    fn routes(&self, routes: Routes) -> Result<Routes, ServeError> {
        let inference = InferenceServiceServer::new(Inference(Arc::clone(&self.shared)))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let inference = InterceptedService::new(inference, self.guard.door(For::Clients));
        let inference = Counted::new(inference, &self.shared.answers);
        let admin = AdminServiceServer::new(Admin(self.operations()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let admin = InterceptedService::new(admin, self.guard.door(For::Operators));
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let mut routes = routes
            .add_service(inference)
            .add_service(admin)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        if let Some(registry) = self.membership.registry() {
            let registry = registry.service(self.shared.model.check_worker());
            let door = self.guard.door(For::Peers);
            routes = routes.add_service(InterceptedService::new(registry, door));
        }
        Ok(routes)
    }

    /// Is no longer ready, then refuses new requests, then waits for answers to be given; at the limit requests
    /// end with an error.
    async fn drain(&self, reporter: &HealthReporter) {
        self.shared.gate.give_notice();
        set_ready(reporter, false).await;
        tracing::info!(
            running = self.shared.gate.inside(),
            "draining: the door closes in {:?}",
            self.shared.config.drain_notice
        );
        tokio::time::sleep(self.shared.config.drain_notice).await;
        self.shared.gate.close();
        let limit = self.shared.config.drain_timeout;
        if tokio::time::timeout(limit, self.all_told()).await.is_ok() {
            return;
        }
        tracing::warn!(
            running = self.shared.gate.inside(),
            unread = self.shared.answers.open(),
            "requests are cut off by shutdown after {limit:?}"
        );
        self.shared.answers.cut_off();
        let told = tokio::time::timeout(CUT_OFF_TIMEOUT, self.all_told());
        if told.await.is_err() {
            let unread = self.shared.answers.open();
            tracing::warn!(unread, "clients do not take the end of their answers");
        }
    }

    /// Waits until no request runs and every answer has been given.
    async fn all_told(&self) {
        while self.shared.gate.inside() + self.shared.answers.open() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }
}

/// Until one of several servers ends.
async fn ended(
    serving: &mut JoinSet<Result<(), tonic::transport::Error>>,
) -> Result<(), tonic::transport::Error> {
    match serving.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(ended)) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // With its runtime.
            Err(_) => Ok(()),
        },
        None => Ok(()),
    }
}
