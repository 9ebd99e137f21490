//! What a failure means to the shell.

use std::process::ExitCode;

use baton_proto::code_name;

use crate::output;

/// Exit code of what went wrong while running.
pub(crate) const FAILED: i32 = 1;
/// Exit code of a wrong command line or configuration, clap's own too.
pub(crate) const USAGE: i32 = 2;
const FAILED_CODE: u8 = FAILED as u8;
const USAGE_CODE: u8 = USAGE as u8;
const UNREACHABLE_CODE: u8 = 4;

/// A failure with its exit code. 0 is success.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// 1: something went wrong while running.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self {
            code: FAILED_CODE,
            message: message.into(),
        }
    }
    /// 2: flags, environment or configuration file are wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: USAGE_CODE,
            message: message.into(),
        }
    }
    /// 3: the service answered with an error.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self {
            code: 3,
            message: message.into(),
        }
    }
    /// 4: nobody answers at the address.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self {
            code: UNREACHABLE_CODE,
            message: message.into(),
        }
    }
    /// The service's status, as the user should read it.
    pub(crate) fn from_status(status: &tonic::Status) -> Self {
        let status = &readable(status);
        Self::refused(format!(
            "{}: {}",
            code_name(status.code()),
            status.message()
        ))
    }
    /// 0: nobody reads on, which is no failure, and ends the command.
    pub(crate) fn reader_gone() -> Self {
        Self {
            code: 0,
            message: String::new(),
        }
    }
    /// Whether nobody reads on.
    pub(crate) fn is_reader_gone(&self) -> bool {
        self.code == 0
    }
    /// What went wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
    /// The gRPC code closest to this failure, for events that programs read.
    pub(crate) fn code_name(&self) -> &'static str {
        match self.code {
            USAGE_CODE => code_name(tonic::Code::InvalidArgument),
            UNREACHABLE_CODE => code_name(tonic::Code::Unavailable),
            _ => code_name(tonic::Code::Unknown),
        }
    }
    /// Prints the message and gives the code. An empty message has been told already.
    pub(crate) fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            output::remark(&format!("baton: {}\n", self.message));
        }
        ExitCode::from(self.code)
    }
    /// The failure was already told in another form (a JSON event).
    pub(crate) fn told(mut self) -> Self {
        self.message.clear();
        self
    }
}

/// What a status means to a user: a connection that broke has no words of its own.
pub(crate) fn readable(status: &tonic::Status) -> tonic::Status {
    if status.code() == tonic::Code::Cancelled && status.message() == "Timeout expired" {
        // The transport's own words for a deadline that passed before the service answered.
        return tonic::Status::deadline_exceeded("the deadline passed before the service answered");
    }
    if status.code() == tonic::Code::PermissionDenied
        && status.message().starts_with("h2 protocol error")
    {
        // How a port under TLS turns away those who do not speak it (INADEQUATE_SECURITY).
        return tonic::Status::unavailable(
            "the router speaks TLS alone on this port: give --tls-ca, and --tls-cert with --tls-key where it \
             wants a certificate",
        );
    }
    let broken = std::error::Error::source(status).is_some()
        && matches!(
            status.code(),
            tonic::Code::Unknown | tonic::Code::Internal | tonic::Code::Cancelled
        );
    if broken {
        return tonic::Status::unavailable(match cause(status) {
            // What may be left of a TLS port's refusal.
            Some(cause) if cause == "connection closed" => format!(
                "the connection to the router was lost: {cause}; if it speaks TLS there, give --tls-ca, and a \
                 certificate (--tls-cert, --tls-key) where it wants one"
            ),
            Some(cause) => format!("the connection to the router was lost: {cause}"),
            None => "the connection to the router was lost".to_owned(),
        });
    }
    status.clone()
}

/// What broke a connection, as the part that met it says it.
fn cause(status: &tonic::Status) -> Option<String> {
    let mut error = std::error::Error::source(status)?;
    while let Some(source) = error.source() {
        error = source;
    }
    Some(error.to_string())
}
