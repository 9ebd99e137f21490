//! `baton trace`: the timeline of one request that the router remembers.

use baton_proto::v1::{DoneEvent, GetRequestRequest};

use crate::args::{AskingSecurityArgs, TraceArgs};
use crate::exit::Failure;
use crate::timeline::{Canvas, Timeline};
use crate::{client, output};

/// Draws a request by its id or label.
pub(crate) async fn run(args: TraceArgs) -> Result<(), Failure> {
    let request = args.request.ok_or_else(|| {
        Failure::usage(
            "name the request by its id or label, as its receipt and the router's logs do",
        )
    })?;
    let timeline = remembered(args.connect.as_deref(), &args.security, request)
        .await?
        .map_err(|status| Failure::from_status(&status))?;
    let drawn = || Canvas::of(&std::io::stdout()).draw(&timeline);
    output::in_format(args.format, || timeline.json(), drawn)
}

/// The timeline of a request that has just ended: as the router remembers it, else by its receipt.
pub(crate) async fn of_ended(
    connect: Option<&str>,
    security: &AskingSecurityArgs,
    done: &DoneEvent,
) -> Timeline {
    let receipt = done.receipt.clone().unwrap_or_default();
    match remembered(connect, security, receipt.request_id.clone()).await {
        Ok(Ok(timeline)) => timeline,
        // Who may generate need not be allowed to look.
        _ => Timeline::of_receipt(&receipt),
    }
}

async fn remembered(
    connect: Option<&str>,
    security: &AskingSecurityArgs,
    request: String,
) -> Result<Result<Timeline, tonic::Status>, Failure> {
    let mut client = client::admin(connect, security).await?;
    let answer = client.get_request(GetRequestRequest { request }).await;
    Ok(answer.map(|answer| {
        let answer = answer.into_inner();
        let record = answer.request.unwrap_or_default();
        Timeline::of_record(&record, answer.now_us)
    }))
}
