//! Connecting to a router as a client. Must not know what is then asked.

use std::time::Duration;

use baton_cluster::Dialer;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::args::AskingSecurityArgs;
use crate::exit::Failure;
use crate::{security, small_file};

/// Where a router listens unless told otherwise.
pub(crate) const DEFAULT_ROUTER: &str = "127.0.0.1:7070";

/// Most bytes of a file with a key.
const MAX_KEY_BYTES: u64 = 4096;

/// A connection that presents a key with every call, if there is one.
pub(crate) type Connection = InterceptedService<Channel, Presents>;

/// Connects to a router, within five seconds.
pub(crate) async fn connect(
    address: Option<&str>,
    security: &AskingSecurityArgs,
) -> Result<Connection, Failure> {
    let presents = Presents::new(security)?;
    let channel = dial(
        address.unwrap_or(DEFAULT_ROUTER),
        security,
        Duration::from_secs(5),
    )
    .await?;
    Ok(InterceptedService::new(channel, presents))
}

/// Connects to any process of the service, within this time.
pub(crate) async fn dial(
    address: &str,
    security: &AskingSecurityArgs,
    within: Duration,
) -> Result<Channel, Failure> {
    let tls = security::client_tls(security)?;
    let (scheme, bare) = address.split_once("://").unwrap_or(("", address));
    match (scheme, &tls) {
        ("https", None) => {
            return Err(Failure::usage(format!(
                "--connect {address}: https needs --tls-ca, the CA of the router's certificate"
            )));
        }
        ("http", Some(_)) => {
            return Err(Failure::usage(format!(
                "--connect {address}: http is not encrypted, but --tls-ca asks for TLS"
            )));
        }
        _ => {}
    }
    let endpoint = Endpoint::from_shared(format!("http://{bare}"))
        .map_err(|error| {
            Failure::usage(format!("--connect {address}: {error}; expected HOST:PORT"))
        })?
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(10));
    let dialer = Dialer::plain().with_tls(tls.as_ref()).with_timeout(within);
    dialer.connect(&endpoint).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Failure::unreachable(format!(
            "nobody answers at {address} ({cause}); start a router with `baton up --model PATH` or name another with --connect"
        ))
    })
}

/// Puts the key into every call.
#[derive(Clone)]
pub(crate) struct Presents(Option<MetadataValue<Ascii>>);

impl Presents {
    /// The key of the file that was named, else of the environment.
    fn new(security: &AskingSecurityArgs) -> Result<Self, Failure> {
        let key = match &security.api_key_file {
            Some(path) => Some(small_file::read(path, MAX_KEY_BYTES).map_err(|error| {
                Failure::usage(format!("--api-key-file {}: {error}", path.display()))
            })?),
            None => std::env::var("BATON_API_KEY").ok(),
        };
        let Some(key) = key else {
            return Ok(Self(None));
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", key.trim())
            .parse()
            .map_err(|_| Failure::usage("the API key has characters that no key has"))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Presents {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}

/// For generating.
pub(crate) async fn inference(
    address: Option<&str>,
    security: &AskingSecurityArgs,
) -> Result<InferenceServiceClient<Connection>, Failure> {
    Ok(InferenceServiceClient::new(
        connect(address, security).await?,
    ))
}

/// For operating.
pub(crate) async fn admin(
    address: Option<&str>,
    security: &AskingSecurityArgs,
) -> Result<AdminServiceClient<Connection>, Failure> {
    Ok(AdminServiceClient::new(connect(address, security).await?))
}
