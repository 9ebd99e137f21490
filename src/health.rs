//! `baton health`: what a probe asks of one process, with the certificates of the process itself, for
//! probers that have none.

use std::time::Duration;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::args::{HealthArgs, HealthName};
use crate::exit::Failure;
use crate::{client, output};

/// Longest time of the whole question.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints `serving`, or fails: 3 if it is not, 4 if nobody answers.
pub(crate) async fn run(args: HealthArgs) -> Result<(), Failure> {
    let address = args.connect.as_deref().unwrap_or(client::DEFAULT_ROUTER);
    let name = match args.name.unwrap_or(HealthName::Ready) {
        HealthName::Live => "live",
        HealthName::Ready => "ready",
    };
    let asked = async {
        let channel = client::dial(address, &args.security, PATIENCE).await?;
        let service = name.to_owned();
        let answer = HealthClient::new(channel)
            .check(HealthCheckRequest { service })
            .await
            .map_err(|status| Failure::from_status(&status))?;
        Ok(answer.into_inner().status())
    };
    let status = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| {
        Failure::unreachable(format!(
            "nobody answers at {address} within {} s",
            PATIENCE.as_secs()
        ))
    })??;
    if status != ServingStatus::Serving {
        return Err(Failure::refused(format!("{address} is not {name}")));
    }
    output::result("serving\n")
}
